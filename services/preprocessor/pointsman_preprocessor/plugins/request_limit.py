"""`request-limit`: so many requests in so much time, by tenant, plan, model or whatever else a request has."""

from typing import Final

from pydantic import Field, JsonValue

from pointsman_contracts.limits import LimitWindow
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.limits.rate import Rate, Rates, rates
from pointsman_preprocessor.plugins.limit import Limit, LimitParams

SENT_AGAIN_MS: Final = 5_000
"""How long a request is remembered, so that one that its edge sends again isn't counted twice."""
_SMALL: Final = 10
"""Requests that may come at once whatever the rate."""


class RequestLimitParams(LimitParams):
    """How many requests."""

    rate: Rates
    """An amount per time, or several that all count: `50/s`, `[50/s, 1000/min]`."""
    burst: float | None = Field(default=None, ge=1)
    """How many may come at once; default: a tenth of the amount, at least 10, at most the amount."""


class RequestLimit(Limit[RequestLimitParams]):
    """Requests arrive at most at the rate, but for a burst."""

    type_name = "request-limit"

    def setup(self) -> None:
        super().setup()
        self._windows_configured = tuple(self._window(each) for each in self.params.rate)

    @property
    def windows(self) -> tuple[LimitWindow, ...]:
        return self._windows_configured

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        return tuple(self._window(each) for each in amounts(value, self.params.rate))

    def until_ms(self, incoming: Incoming) -> int:
        return incoming.envelope.received_ms + SENT_AGAIN_MS

    def _window(self, each: Rate) -> LimitWindow:
        burst = min(each.amount, max(_SMALL, each.amount / 10)) if self.params.burst is None else self.params.burst
        return LimitWindow(
            unit="requests", amount=each.amount, period_s=each.period_s, burst=max(1.0, burst) if each.amount else 0.0
        )


def amounts(value: JsonValue, configured: tuple[Rate, ...]) -> tuple[Rate, ...]:
    """Rates, or a number in the place of the amount of the first configured one. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("a truth value is no amount")  # noqa: TRY004 - the value is wrong, not a type
    if isinstance(value, int | float):
        if not 0 <= value < 1e15:
            raise ValueError("an amount isn't negative")
        return (Rate(float(value), configured[0].period_s), *configured[1:])
    return rates(value)
