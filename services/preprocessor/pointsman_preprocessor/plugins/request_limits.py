"""Limits of requests: `request-limit` and `infra-request-limit` at a rate, `concurrency-limit` at the same time."""

from typing import Final, Self, TypeVar

from pydantic import Field, JsonValue, model_validator

from pointsman_contracts.limits import LimitWindow
from pointsman_core.rate import Rate, Rates, rates
from pointsman_limits.domain.limits.scope import OF_IDENTITY
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.plugins.limit import Limit, LimitParams

SENT_AGAIN_MS: Final = 5_000
"""How long a request is remembered, so that a retry by its edge isn't counted again."""
_SMALL: Final = 10
"""Minimum number of requests that may come at once, at any rate."""


class RequestLimitParams(LimitParams):
    """The rate of requests."""

    rate: Rates
    """An amount per time, or several that all count: `50/s`, `[50/s, 1000/min]`."""
    burst: float | None = Field(default=None, ge=1)
    """Requests that may come at once; default: a tenth of the amount, at least 10, at most the amount. A claim of fewer
    requests lowers it to that number, unless it exceeds the configured amount itself."""


class RequestLimit(Limit[RequestLimitParams]):
    """Limits requests to the rate, except for a burst."""

    type_name = "request-limit"

    def setup(self) -> None:
        super().setup()
        self.windows = tuple(self._window(each) for each in self.params.rate)

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        burst, configured = self.params.burst, self.params.rate
        capped = burst is not None and any(burst <= each.amount for each in configured)
        return tuple(self._window(each, capped=capped) for each in amounts(value, configured))

    def until_ms(self, incoming: Incoming) -> int:
        return incoming.envelope.received_ms + SENT_AGAIN_MS

    def _window(self, each: Rate, *, capped: bool = False) -> LimitWindow:
        burst = self.params.burst
        if burst is None:
            burst = min(each.amount, max(_SMALL, each.amount / 10))
        elif capped:
            burst = min(burst, each.amount)
        return LimitWindow(
            unit="requests",
            amount=each.amount,
            period_s=each.period_s,
            burst=max(1.0, burst) if each.amount else 0.0,
        )


def amounts(value: JsonValue, configured: tuple[Rate, ...]) -> tuple[Rate, ...]:
    """Rates, or a number that replaces the amount of the first configured one. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError("a truth value is no amount")  # noqa: TRY004 - the value is wrong, not a type
    if isinstance(value, int | float):
        if not 0 <= value < 1e15:
            raise ValueError("an amount isn't negative")
        return (Rate(float(value), configured[0].period_s), *configured[1:])
    return rates(value)


class InfraRequestLimitParams(RequestLimitParams):
    """The rate of requests."""

    @model_validator(mode="after")
    def _knows_nobody(self) -> Self:
        return without_identity(self)


class InfraRequestLimit(RequestLimit):
    """Its count stays when the request is rejected later, because that request has already cost work."""

    type_name = "infra-request-limit"
    params_type = InfraRequestLimitParams
    kept = True


P = TypeVar("P", bound=LimitParams)


def without_identity(params: P) -> P:
    """The parameters of a limit that runs before authentication. Raises ValueError."""
    personal = [scope for scope in params.per if scope in OF_IDENTITY]
    if personal or params.claim is not None:
        what = f"per {', '.join(personal)}" if personal else "claim"
        raise ValueError(f"{what}: this limit knows no identity; use `request-limit` or `token-limit` for that")
    return params


class ConcurrencyLimitParams(LimitParams):
    """The number of concurrent requests."""

    limit: int = Field(ge=0)
    """Requests that have started and not ended."""


class ConcurrencyLimit(Limit[ConcurrencyLimitParams]):
    """A request counts from here to the end of its answer."""

    type_name = "concurrency-limit"

    def setup(self) -> None:
        super().setup()
        self.windows = (LimitWindow(unit="concurrency", amount=self.params.limit),)

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        # An API key's numbers are floats, a token's may be integers.
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1 != 0:
            raise ValueError("a whole number is expected")
        return (LimitWindow(unit="concurrency", amount=value),)
