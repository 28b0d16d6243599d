"""Questions to the keepers of counts: the verdicts of those that go together, the next keeper to ask, and the part of a
limit that one process counts alone."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.limits import LimitAsk, LimitVerdict, LimitWindow
from pointsman_plugins.preprocessing import Answered

MOVING_S: Final = 0.004
"""The pauses grow by this while a shard is being handed over."""
LONGEST_PAUSE_S: Final = 0.03

_OPEN: Final = LimitVerdict(outcome="elsewhere")
"""The verdict about a question that isn't asked yet: the one before it wasn't admitted."""


class InOrder(NamedTuple):
    """The answers to a chain of questions: each follows the one before it."""

    answers: list[Answered]
    early: list[LimitAsk]
    """Questions that a keeper of an earlier version admitted, although the one before wasn't: release them."""


def give_verdicts(asks: Iterable[LimitAsk], verdict_of: Callable[[LimitAsk], LimitVerdict]) -> tuple[LimitVerdict, ...]:
    """The verdict of each question. One that follows a question that isn't admitted isn't asked."""
    verdicts: list[LimitVerdict] = []
    admitted = True
    for ask in asks:
        verdict = verdict_of(ask) if admitted or not ask.follows else _OPEN
        admitted = verdict.outcome == "admitted"
        verdicts.append(verdict)
    return tuple(verdicts)


def put_in_order(asks: Iterable[LimitAsk], verdicts: Iterable[LimitVerdict]) -> InOrder:
    """The answers to `asks`, a chain of questions, from a keeper's verdicts."""
    ordered = InOrder([], [])
    admitted = True
    for ask, given in zip(asks, verdicts, strict=True):
        verdict = given if admitted else _OPEN
        if given.outcome == "admitted" and not admitted:
            ordered.early.append(ask)
        admitted = verdict.outcome == "admitted"
        ordered.answers.append(Answered(ask, verdict))
    return ordered


def part_of_window(window: LimitWindow, share: float) -> LimitWindow:
    """The part of a limit's window for a process that counts a `share` of the requests alone. At least one request of a
    concurrency limit, and a burst of at least 1, where the limit has any."""
    if window.unit == "concurrency":
        amount: float = max(1.0, window.amount * share // 1) if window.amount else 0.0
        return replace(window, amount=amount)
    burst = max(1.0, window.burst * share) if window.burst else 0.0
    return replace(window, amount=window.amount * share, burst=burst)


class KeeperSearch:
    """The keepers that one question is sent to, one after the other, until one keeps the count."""

    def __init__(self, me: str, first: str) -> None:
        self.keeper = first
        """The instance to ask now."""
        self._me: Final = me
        self._hops = 0
        self._pause_s = 0.0

    def follow_verdict(self, named: str, ranked: str, *, doubted: bool) -> float | None:
        """Choose the next keeper: the one that the last `named`, or the one that should keep the shard (`ranked`) where
        it named none, this process or a `doubted` one. Returns the seconds to wait before; None: ask at once."""
        before = self.keeper
        self.keeper = ranked if not named or named == self._me or doubted else named
        self._hops += 1
        if self._hops <= 1 and self.keeper not in (self._me, before):
            return None
        # The shard is being handed over, or about to be proved.
        pause_s, self._pause_s = self._pause_s, min(self._pause_s + MOVING_S, LONGEST_PAUSE_S)
        return pause_s
