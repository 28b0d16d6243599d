"""Questions to limits, and their verdicts, as they stay inside a process: made by position in C, in a tenth of the time
of the messages' parts. Fields are those of `LimitAsk`, `LimitVerdict` and `WindowStanding`, in their order."""

from typing import Literal

import msgspec
from msgspec.structs import asdict

from pointsman_contracts.limits import BudgetAsk, BudgetStanding, LimitAsk, LimitVerdict, LimitWindow, WindowStanding


class InnerAsk(msgspec.Struct, frozen=True, gc=False):
    """A `LimitAsk`."""

    edge: str
    request_id: str
    attempt: int
    limit: str
    shard: int
    scope: str
    windows: tuple[LimitWindow, ...]
    cost: float
    risk: float
    reactive: bool
    kept: bool
    until_ms: int
    open_s: float | None
    budget: BudgetAsk | None = None


class InnerStanding(msgspec.Struct, frozen=True, gc=False):
    """A `WindowStanding`."""

    remaining: float
    reset_s: float


class InnerVerdict(msgspec.Struct, frozen=True, gc=False):
    """A `LimitVerdict`."""

    outcome: Literal["admitted", "refused", "elsewhere"]
    standings: tuple[InnerStanding, ...] = ()
    window: int = 0
    retry_s: float | None = None
    keeper: str = ""
    budget: BudgetStanding | None = None

    @classmethod
    def of(cls, told: LimitVerdict) -> "InnerVerdict":
        """A keeper's verdict as it arrived."""
        standings = tuple([InnerStanding(each.remaining, each.reset_s) for each in told.standings])
        return cls(told.outcome, standings, told.window, told.retry_s, told.keeper, told.budget)

    def told(self) -> LimitVerdict:
        """The part of the message."""
        standings = tuple([WindowStanding(remaining=each.remaining, reset_s=each.reset_s) for each in self.standings])
        return LimitVerdict(
            outcome=self.outcome,
            standings=standings,
            window=self.window,
            retry_s=self.retry_s,
            keeper=self.keeper,
            budget=self.budget,
        )


AnyAsk = LimitAsk | InnerAsk


def told(ask: AnyAsk) -> LimitAsk:
    """The part of the message."""
    return ask if isinstance(ask, LimitAsk) else LimitAsk(**asdict(ask))
