"""`token-limit`, `infra-token-limit`: tokens in a time, reserved before a request runs and settled by its usage."""

from contextlib import suppress
from math import ceil
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from pointsman_contracts.identity import LONGEST_NAME
from pointsman_contracts.limits import LimitAsk, LimitVerdict, LimitWindow
from pointsman_contracts.response import Usage
from pointsman_core.rate import Rate, Rates
from pointsman_limits.domain.limits.output_lengths import answer_length
from pointsman_limits.domain.limits.token_cost import TokenCost
from pointsman_plugins.preprocessing import IDENTITY, Incoming
from pointsman_preprocessor.plugins.limit import Limit, LimitParams
from pointsman_preprocessor.plugins.request_limits import amounts, without_identity

LARGEST_PART: Final = 0.5
"""Maximum part of the smallest window that one request reserves: larger ones would wait for an empty window (Kuadrant
RFC 0021, `max_fraction`). Usage beyond it is debt."""


def _compiles(text: str) -> str:
    TokenCost(text)
    return text


class TokenLimitParams(LimitParams):
    """The rate of tokens."""

    amount: Rates
    """An amount per time, or several that all count: `200k/min`, `[200k/min, 5M/d]`."""
    charging: Literal["reserve", "reactive"] = "reserve"
    """`reserve`: the probable cost of a request is counted before it runs, and corrected when it has ended. `reactive`:
    the actual cost is counted when it has ended, and later requests are rejected."""
    cost: Annotated[str, AfterValidator(_compiles)] | None = None
    """Cost of a request, in CEL over `input_tokens`, `output_tokens`, `total_tokens`, `cached_tokens`,
    `reasoning_tokens` (floats) and `model`; default `total_tokens`."""
    expected_output: int | None = Field(default=None, ge=0)
    """Tokens of output to reserve for each answer (`n`, or `best_of`, to a prompt), at most the request's own limit;
    default: a bound that 95 % of the model's recent answers to this tenant stay below, with 95 % confidence."""
    on_exhaust: Literal["finish", "truncate"] = "finish"
    """`finish`: an answer that began may use more than was left. `truncate`: the request's own limit on its output is
    lowered to the tokens that are left, so that the answer ends with `length`. Only without `cost`."""

    @model_validator(mode="after")
    def _counts_plain_tokens(self) -> Self:
        if self.on_exhaust == "truncate" and self.cost is not None:
            raise ValueError("on_exhaust: truncate counts tokens as they are; leave `cost` out")
        return self


class TokenLimit(Limit[TokenLimitParams]):
    """Limits the tokens of recent and running requests."""

    type_name = "token-limit"

    def setup(self) -> None:
        super().setup()
        self.reactive = self.params.charging == "reactive"
        self.windows = tuple(_window(each) for each in self.params.amount)
        self._most = _most(self.windows)
        """Tokens that a request reserves at most, of the configured windows."""
        self.price = TokenCost(self.params.cost)
        """The cost of used tokens."""

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        return tuple(_window(each) for each in amounts(value, self.params.amount))

    def estimate_cost(self, incoming: Incoming, windows: tuple[LimitWindow, ...]) -> tuple[float, float]:
        if self.reactive:
            return 0.0, 0.0
        expected, most = self._output(incoming)
        prompt, count = incoming.prompt.tokens, incoming.body.view.answers
        tokens = self._tokens(incoming, prompt, expected * count)
        at_most = tokens if most == expected else self._tokens(incoming, prompt, most * count)
        reserved = min(float(ceil(tokens)), self._most if windows is self.windows else _most(windows))
        return reserved, max(0.0, at_most - reserved)

    def admitted(self, incoming: Incoming, ask: LimitAsk, verdict: LimitVerdict) -> None:
        body = incoming.body
        if self.params.on_exhaust == "finish" or not body.api.output_limits or not verdict.standings:
            return
        left = min([standing.remaining for standing in verdict.standings]) + ask.cost - incoming.prompt.tokens
        each = max(1, int(left // body.view.answers))
        own = body.max_output_tokens
        if own is not None and own <= each:
            return
        names = body.api.output_limits
        incoming.set_field(next((name for name in names if incoming.field(name) is not None), names[0]), each)
        body.max_output_tokens = each
        incoming.say(f"each answer may have {each} tokens, which are left")

    def _tokens(self, incoming: Incoming, prompt: int, output: int) -> float:
        if self.price.is_weighted:
            with suppress(ArithmeticError):
                return self.price(Usage(prompt_tokens=prompt, completion_tokens=output), incoming.model)
        return float(prompt + output)

    def _output(self, incoming: Incoming) -> tuple[int, int]:
        tenant = ""
        if self.scopes.need_identity:
            tenant = str((incoming.read(IDENTITY) or {}).get("tenant") or "")[:LONGEST_NAME]
        return answer_length(incoming, self._limiter.lengths, tenant, self.params.expected_output)


def _most(windows: tuple[LimitWindow, ...]) -> float:
    return LARGEST_PART * min([window.amount for window in windows])


def _window(each: Rate) -> LimitWindow:
    return LimitWindow(unit="tokens", amount=each.amount, period_s=each.period_s)


class InfraTokenLimitParams(TokenLimitParams):
    """The rate of tokens."""

    @model_validator(mode="after")
    def _knows_nobody(self) -> Self:
        return without_identity(self)


class InfraTokenLimit(TokenLimit):
    """Like `token-limit`, without an identity."""

    type_name = "infra-token-limit"
    params_type = InfraTokenLimitParams
