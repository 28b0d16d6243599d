"""The common part of all limits: the scope of a request, the amounts for it, and the rejection."""

from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Iterator
from math import ceil
from typing import Final

from pydantic import Field, JsonValue
from typing_extensions import TypeVar

from pointsman_contracts.limits import LimitAsk, LimitVerdict, LimitWindow
from pointsman_core.refusal import Refusal
from pointsman_limits.domain.limits.limiter import Elsewhere, Limiter, OwnBook
from pointsman_limits.domain.limits.question import limit_ask
from pointsman_limits.domain.limits.scope import ScopeName, Scopes
from pointsman_limits.domain.limits.told import tell
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports, RequestProcessor
from pointsman_preprocessor.domain.chain import Step

_MOST_KEPT: Final = 4096
"""Most amounts from claims that stay compiled."""


class LimitParams(Params):
    """The scope of a limit, and the source of its amounts."""

    per: tuple[ScopeName, ...] = ()
    """Each combination of values has a count of its own: `tenant`, `subject`, `plan`, `model`, `header:<name>`. Without
    any, all requests share one."""
    claim: str | None = Field(default=None, min_length=1)
    """Entry of the identity's `limits` that replaces the amount, where an identity has it; 0 rejects every request."""
    tell: bool = True
    """Send clients the remaining amount (`x-ratelimit-*`)."""


LimitParamsT_co = TypeVar("LimitParamsT_co", bound=LimitParams, default=LimitParams, covariant=True)


class Limit(RequestProcessor[LimitParamsT_co]):
    """Counts requests, and rejects those over the limit with 429."""

    reports = True
    kept = False
    """Whether its count stays when another limit rejects the request."""
    windows: tuple[LimitWindow, ...] = ()
    """As configured; `setup` makes them."""
    reactive = False
    """Whether the cost is counted only at the end."""
    followers: "tuple[Limit, ...]" = ()
    """The limits right behind this one whose questions may be asked with its own."""

    def setup(self) -> None:
        self.scopes = Scopes(self.name, self.params.per)
        if self.scopes.need_identity or self.params.claim is not None:
            self.consumes = (IDENTITY,)
        self._limiter: Limiter = OwnBook()
        self._claimed: dict[str, tuple[LimitWindow, ...] | None] = {}

    @abstractmethod
    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        """The windows of a claim. Raises ValueError."""

    def connect(self, ports: Ports) -> None:
        self._limiter = ports.find(Limiter) or self._limiter

    def process(self, incoming: Incoming) -> Awaitable[None] | None:
        if incoming.answered and self.name in incoming.answered:
            ask, verdict = incoming.answered.pop(self.name)
            if verdict.outcome != "elsewhere":
                return self._ruled(incoming, ask, verdict)
        else:
            ask = self._limit_ask(incoming, self._amounts(incoming))
        verdict = self._limiter.count_at_keeper(ask, incoming.envelope.received_ms / 1000)
        if isinstance(verdict, LimitVerdict):
            return self._ruled(incoming, ask, verdict)
        return self._wait(incoming, verdict)

    def degrade(self, incoming: Incoming) -> bool:
        """Count here, against this process's share."""
        ask = self._limit_ask(incoming, self._amounts(incoming))
        self._ruled(incoming, ask, self._limiter.count_locally(ask, incoming.envelope.received_ms / 1000))
        return True

    def estimate_cost(self, incoming: Incoming, windows: tuple[LimitWindow, ...]) -> tuple[float, float]:
        """The cost to count in advance, and the most that it may grow by."""
        del incoming, windows
        return 1.0, 0.0

    def admitted(self, incoming: Incoming, ask: LimitAsk, verdict: LimitVerdict) -> None:
        """The limit has counted the request: change it where the limit does so."""
        del incoming, ask, verdict

    def until_ms(self, incoming: Incoming) -> int | None:
        """When the request can't be open any more; None: as `limit_ask` says."""
        del incoming
        return None

    async def _wait(self, incoming: Incoming, verdict: Elsewhere) -> None:
        answered, *others = await verdict.with_later(self._later(incoming))
        for other in others:
            incoming.answered[other.ask.limit] = other
        self._ruled(incoming, answered.ask, answered.verdict)

    def _later(self, incoming: Incoming) -> Iterator[LimitAsk]:
        """The questions of the limits behind this one."""
        for limit in self.followers:
            windows = limit._claimed_windows(incoming)
            if windows is None or limit.name in incoming.answered:
                return
            yield limit._limit_ask(incoming, windows)

    def _limit_ask(self, incoming: Incoming, windows: tuple[LimitWindow, ...]) -> LimitAsk:
        scope, shard = self.scopes.values_of(incoming)
        cost, risk = self.estimate_cost(incoming, windows)
        return limit_ask(
            incoming.envelope,
            self.name,
            scope,
            shard,
            windows=windows,
            cost=cost,
            risk=risk,
            reactive=self.reactive,
            kept=self.kept,
            until_ms=self.until_ms(incoming),
        )

    def _amounts(self, incoming: Incoming) -> tuple[LimitWindow, ...]:
        windows = self._claimed_windows(incoming)
        if windows is not None:
            return windows
        claim = self.params.claim
        incoming.say(f"the claim {claim!r} is no amount; the configured one counts")
        incoming.degraded.append(f"{self.name}: claim {claim!r} is no amount")
        return self.windows

    def _claimed_windows(self, incoming: Incoming) -> tuple[LimitWindow, ...] | None:
        """The amounts that the identity claims, or the configured ones; None for a claim that is no amount."""
        claim = self.params.claim
        if claim is None:
            return self.windows
        limits = (incoming.read(IDENTITY) or {}).get("limits")
        value = limits.get(claim) if isinstance(limits, dict) else None
        if value is None:
            return self.windows
        key = repr(value)
        if key not in self._claimed:
            if len(self._claimed) >= _MOST_KEPT:
                self._claimed.clear()
            try:
                self._claimed[key] = self.claimed(value)
            except ValueError:
                self._claimed[key] = None
        return self._claimed[key]

    def _ruled(self, incoming: Incoming, ask: LimitAsk, verdict: LimitVerdict) -> None:
        if self.params.tell or verdict.outcome == "refused":
            tell(incoming, ask.windows, verdict)
        if verdict.outcome == "admitted":
            incoming.charges.append(ask)
            self.admitted(incoming, ask, verdict)
            return
        raise self._refusal(ask.windows[verdict.window], verdict.retry_s)

    def _refusal(self, window: LimitWindow, retry_s: float | None) -> Refusal:
        what = f"{self.name}: {describe(window)}{self.scopes}"
        if window.amount <= 0:
            return Refusal(
                429,
                f"The quota of the limit {what} is 0; trying again won't help.",
                type="insufficient_quota",
                code="insufficient_quota",
                dropped_reason=f"limit {self.name}",
            )
        wait_s = 1 if retry_s is None else max(1, ceil(retry_s))
        return Refusal(
            429,
            f"Rate limit reached: {what}. Please try again in {wait_s} s.",
            type=window.counted_unit,
            code="rate_limit_exceeded",
            retry_after_s=float(wait_s),
            dropped_reason=f"limit {self.name}",
        )


def ask_together(steps: Iterable[Step]) -> None:
    """Find the limits of a pipeline that stand right behind each other: their questions may go to a keeper together,
    and are decided in order. A limit in shadow ends no request, and one with a timeout doesn't wait for the rest."""
    ordered = tuple(steps)
    plain = [step.processor for step in ordered if not step.shadow and step.timeout_s is None]
    limits: dict[str, Limit] = {each.name: each for each in plain if isinstance(each, Limit)}
    followers: tuple[Limit, ...] = ()
    for step in reversed(ordered):
        limit = limits.get(step.processor.name)
        if limit is None:
            followers = ()
            continue
        limit.followers = followers
        # A kept reservation can't be released, if a keeper of an earlier version counts it too early.
        followers = () if limit.kept else (limit, *followers)


def describe(window: LimitWindow) -> str:
    """In words, e.g. `50 requests in 1 s`."""
    if window.unit == "concurrency":
        return f"{window.amount:g} {window.counted_unit} at the same time"
    return f"{window.amount:.15g} {window.counted_unit} in {window.period_s:g} s"
