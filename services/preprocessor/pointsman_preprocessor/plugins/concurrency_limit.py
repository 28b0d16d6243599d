"""`concurrency-limit`: so many requests at the same time."""

from pydantic import Field, JsonValue

from pointsman_contracts.limits import LimitWindow
from pointsman_preprocessor.plugins.limit import Limit, LimitParams


class ConcurrencyLimitParams(LimitParams):
    """How many requests."""

    limit: int = Field(ge=0)
    """Requests that have begun and not ended."""


class ConcurrencyLimit(Limit[ConcurrencyLimitParams]):
    """A request counts from here to the end of its answer."""

    type_name = "concurrency-limit"

    def setup(self) -> None:
        super().setup()
        self._windows_configured = (LimitWindow(unit="concurrency", amount=self.params.limit),)

    @property
    def windows(self) -> tuple[LimitWindow, ...]:
        return self._windows_configured

    def claimed(self, value: JsonValue) -> tuple[LimitWindow, ...]:
        # An API key's numbers have a point, a token's may have none.
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1 != 0:
            raise ValueError("a whole number is expected")
        return (LimitWindow(unit="concurrency", amount=value),)
