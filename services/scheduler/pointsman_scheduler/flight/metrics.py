"""Metrics of the flight logs."""

from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from pointsman_runtime.telling.counting import Counter


class PoolFlightMetrics(NamedTuple):
    """The children of one pool."""

    inputs: Callable[[float], None]
    bytes: Callable[[float], None]
    gaps: Callable[[], None]


class FlightMetrics:
    """Counts what flight logs have."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._inputs: Final = Counter(
            "pointsman_scheduler_flight_inputs", "Inputs that a flight log has taken", ["pool"], registry=registry
        )
        self._bytes: Final = Counter(
            "pointsman_scheduler_flight_bytes", "Bytes that were written to flight logs", ["pool"], registry=registry
        )
        self._gaps: Final = Counter(
            "pointsman_scheduler_flight_gaps", "Times that a flight log missed inputs", ["pool"], registry=registry
        )
        self._by_pool: Final[dict[str, PoolFlightMetrics]] = {}

    def for_pool(self, pool: str) -> PoolFlightMetrics:
        """The children of a pool."""
        found = self._by_pool.get(pool)
        if found is None:
            found = PoolFlightMetrics(
                self._inputs.labels(pool).inc, self._bytes.labels(pool).inc, self._gaps.labels(pool).inc
            )
            self._by_pool[pool] = found
        return found
