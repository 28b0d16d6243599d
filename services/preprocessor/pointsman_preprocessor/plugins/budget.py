"""`budget`: an amount of money per period, reserved before a request runs and charged with its cost."""

from collections.abc import Awaitable, Iterator, Mapping
from decimal import Decimal
from math import ceil
from typing import Annotated, Final, Literal, cast

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from pointsman_contracts.identity import LONGEST_NAME
from pointsman_contracts.limits import BudgetAsk, BudgetWindow, LimitAsk, LimitVerdict
from pointsman_core.budget_amount import Amounts, amounts, share, windows
from pointsman_core.config import AUTO, Config
from pointsman_core.permission import allowed_models, may_use
from pointsman_core.plugins import PluginError, unknown
from pointsman_core.prices import FREE, Price, dearest, prices
from pointsman_core.refusal import Refusal
from pointsman_limits.domain.budgets.scope import MODEL, BudgetScopeName, BudgetScopes
from pointsman_limits.domain.budgets.told import WARNING, refusal, tell
from pointsman_limits.domain.limits.limiter import Limiter, OwnBook
from pointsman_limits.domain.limits.output_lengths import answer_length
from pointsman_limits.domain.limits.question import limit_ask
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports, RequestProcessor, Unavailable

ANY_MODEL: Final = "*"
"""Key in `fallback` for all other models."""
_MOST_KEPT: Final = 4096
"""Most amounts from claims that stay compiled."""


class BudgetParams(Params):
    """The amount of a budget, and its scope."""

    amount: Amounts | None = None
    """Dollars per period: `20/d`, `100/7d`, `50/month` (calendar month, UTC), or several that all count. Without it
    only identities with the claim have a budget."""
    per: tuple[BudgetScopeName, ...] = ("tenant",)
    """Each combination of values has a budget of its own: `tenant`, `key`, `subject`, `plan`, `model` (the model that
    answers). Empty: all requests share one."""
    claim: str | None = Field(default=None, min_length=1)
    """Entry of the identity's `limits` that replaces the amount, where an identity has it, e.g. `50/month`."""
    soft: Annotated[Decimal | None, BeforeValidator(share)] = Field(default=None, gt=0, le=1)
    """Share of the amount above which warnings are given: an event, a header, a metric."""
    hard: bool = True
    """Reject requests that exceed the amount; without it a budget only warns."""
    fallback: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """Model → cheaper models that serve instead when the budget is spent, in this order; `*` for all others."""
    unpriced: Literal["allow", "refuse"] = "allow"
    """Whether to accept a request for a model without a price, which costs a budget nothing."""
    expected_output: int | None = Field(default=None, ge=0)
    """Tokens of output to expect for each answer, at most the request's own limit; default as of `token-limit`."""
    tell: bool = True
    """Send clients the remaining amount (`x-pointsman-budget-*`)."""

    @field_validator("fallback", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        given = cast("dict[object, object]", value)
        return {name: (models,) if isinstance(models, str) else models for name, models in given.items()}


class Budget(RequestProcessor[BudgetParams]):
    """Reserves the possible cost of a request. When the budget is spent, a cheaper model serves it, or it is rejected
    with 402."""

    type_name = "budget"
    reports = True

    def setup(self) -> None:
        budget = self.params
        if budget.amount is None and budget.claim is None:
            raise PluginError(f"{self.name!r} has neither an amount nor a claim; write e.g. `amount: 50/month`")
        self.scopes = BudgetScopes(self.name, budget.per)
        if self.scopes.need_identity or budget.claim is not None:
            self.consumes = (IDENTITY,)
        self._windows = () if budget.amount is None else windows(budget.amount, budget.soft, hard=budget.hard)
        self._limiter: Limiter = OwnBook()
        self._claimed: dict[str, tuple[BudgetWindow, ...] | None] = {}
        self._prices: dict[str, Price] = {}
        self._dearest = FREE

    def bind(self, config: Config) -> None:
        names = config.model_names()
        fallbacks = self.params.fallback
        for name in (
            *(name for name in fallbacks if name != ANY_MODEL),
            *(m for each in fallbacks.values() for m in each),
        ):
            if name not in names:
                raise PluginError(f"{self.name!r}: {unknown('model', name, names)}", ("fallback",))
        known = prices(config)
        self._dearest = dearest(known.values())
        # A request may end at a fallback of its model, or at a model that a selector chooses.
        for name in names:
            model = config.models.get(name)
            options = (name, *(model.fallbacks if model is not None else ()))
            found = [known[each] for each in options if each in known]
            if found:
                self._prices[name] = dearest(found)

    def connect(self, ports: Ports) -> None:
        self._limiter = ports.find(Limiter) or self._limiter

    def process(self, incoming: Incoming) -> Awaitable[None] | None:
        model = incoming.model
        fallbacks = self.params.fallback
        cheaper = iter(fallbacks.get(model) or fallbacks.get(ANY_MODEL, ())) if fallbacks else iter(())
        return self._hold(incoming, model, cheaper)

    def _hold(self, incoming: Incoming, model: str, cheaper: Iterator[str]) -> Awaitable[None] | None:
        ask = self._budget_ask(incoming, model)
        if ask is None:
            self._serve_model(incoming, model)
            return None
        verdict = self._limiter.count_at_keeper(ask, incoming.envelope.received_ms / 1000)
        if isinstance(verdict, LimitVerdict):
            return self._ruled(incoming, model, cheaper, ask, verdict)
        return self._wait(incoming, model, cheaper, ask, verdict)

    async def _wait(
        self, incoming: Incoming, model: str, cheaper: Iterator[str], ask: LimitAsk, verdict: Awaitable[LimitVerdict]
    ) -> None:
        rest = self._ruled(incoming, model, cheaper, ask, await verdict)
        if rest is not None:
            await rest

    def _ruled(
        self, incoming: Incoming, model: str, cheaper: Iterator[str], ask: LimitAsk, verdict: LimitVerdict
    ) -> Awaitable[None] | None:
        budget, standing = ask.budget, verdict.budget
        if budget is None or standing is None:
            raise Unavailable("the keeper of its count is of an earlier version, which has no budgets")
        if verdict.outcome == "admitted":
            incoming.charges.append(ask)
            if self.params.tell or standing.soft:
                tell(incoming, self.name, budget, standing)
            self._serve_model(incoming, model)
            return None
        for other in cheaper:
            if other != model and may_use(allowed_models(incoming.attributes), other):
                return self._hold(incoming, other, cheaper)
        tell(incoming, self.name, budget, standing)
        raise refusal(self.name, str(self.scopes), budget, standing, incoming.envelope.received_ms)

    def _serve_model(self, incoming: Incoming, model: str) -> None:
        asked = incoming.model
        if model == asked:
            return
        incoming.set_field("model", model)
        incoming.set_answer_header(WARNING, f"{self.name}: spent for {asked}; {model} serves")
        incoming.say(f"spent for {asked}; {model} serves in its place")

    def _budget_ask(self, incoming: Incoming, model: str) -> LimitAsk | None:
        """None when the request can't be charged to this budget."""
        identity = incoming.read(IDENTITY) or {}
        found = self._windows_of(incoming, identity)
        if not found:
            return None
        price = self._price(model)
        expected, at_most = (0, 0) if price is None else self._cost(incoming, identity, price)
        scope, shard = self.scopes.values_of(identity, model if MODEL in self.scopes.names else "")
        asked = BudgetAsk(windows=found, expected=expected, at_most=at_most)
        return limit_ask(incoming.envelope, self.name, scope, shard, budget=asked)

    def _price(self, model: str) -> Price | None:
        price = self._prices.get(model)
        if price is None and model.partition("/")[0] == AUTO:
            return self._dearest
        if price is None and self.params.unpriced == "refuse":
            raise Refusal(
                403,
                f"The model '{model[:100]}' has no price, and the budget {self.name} admits only models that have one.",
                type="insufficient_quota",
                code="model_without_price",
                param="model",
            )
        return price

    def _cost(self, incoming: Incoming, identity: Mapping[str, JsonValue], price: Price) -> tuple[int, int]:
        """Cost in nano-dollars: expected, and maximum."""
        tenant = str(identity.get("tenant") or "")[:LONGEST_NAME]
        expected, most = answer_length(incoming, self._limiter.lengths, tenant, self.params.expected_output)
        prompt, count = incoming.prompt.tokens, incoming.body.view.answers
        probable = price.cost_of_texts(prompt, expected * count)
        highest = _with_special(price, incoming)
        same = most == expected and highest is price
        return probable, probable if same else max(probable, highest.cost_of_texts(prompt, most * count))

    def _windows_of(self, incoming: Incoming, identity: Mapping[str, JsonValue]) -> tuple[BudgetWindow, ...]:
        claim = self.params.claim
        if claim is None:
            return self._windows
        limits = identity.get("limits")
        value = limits.get(claim) if isinstance(limits, dict) else None
        if value is None:
            return self._windows
        key = repr(value)
        if key not in self._claimed:
            if len(self._claimed) >= _MOST_KEPT:
                self._claimed.clear()
            try:
                self._claimed[key] = windows(amounts(value), self.params.soft, hard=self.params.hard)
            except ValueError:
                self._claimed[key] = None
        found = self._claimed[key]
        if found is None:
            raise Unavailable(f"the claim {claim!r} is no amount")
        return found


def _with_special(price: Price, incoming: Incoming) -> Price:
    """The highest price of each token that the request can use."""
    inputs, outputs, special = [price.input], [price.output], price.special
    media = incoming.body.media
    if "audio" in media:
        inputs.append(special.audio_prompt)
    if "vision" in media:
        inputs.append(special.image_prompt)
    wanted = incoming.field("modalities")
    if isinstance(wanted, list) and "audio" in wanted:
        outputs.append(special.audio_completion)
    if special.cache_write > price.input and b'"cache_control"' in bytes(incoming.body.raw):
        inputs += (special.cache_write, special.cache_write_1h)
    if special.reasoning > price.output:
        outputs.append(special.reasoning)
    factor = max(1, price.tiers.get(str(incoming.field("service_tier")), 1))
    if factor == 1 and max(inputs) == price.input and max(outputs) == price.output:
        return price
    return price._replace(input=ceil(max(inputs) * factor), output=ceil(max(outputs) * factor))
