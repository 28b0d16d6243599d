"""Metrics of the limits."""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from pointsman_runtime.telling.counting import Count, Counter, Histogram


class LimitMetrics:
    """One of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests: Final = Counter(
            "pointsman_limit_requests",
            "Requests before a limit: admitted, refused, alone_admitted, alone_refused (its keeper couldn't be asked), "
            "unavailable.",
            ["limit", "outcome"],
            registry=registry,
        )
        self._decided: Final[dict[tuple[str, str], Count]] = {}
        self._tokens: Final = Counter(
            "pointsman_limit_tokens",
            "Tokens of requests that have ended: reserved for them, and used. Counted by the limit's keeper.",
            ["limit", "what"],
            registry=registry,
        )
        self._settled: Final[dict[str, tuple[Count, Count]]] = {}
        self._moves: Final = Counter(
            "pointsman_limit_shard_moves",
            "Shards of counts that were taken_over, handed_over, or lost to another preprocessor.",
            ["how"],
            registry=registry,
        )
        self.asked: Final = Histogram(
            "pointsman_limit_ask_seconds",
            "How long it took to ask another preprocessor about requests.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
            registry=registry,
        )
        self.unsaved: Final = Counter(
            "pointsman_limit_unsaved", "Snapshots of counts that couldn't be written.", registry=registry
        )
        self.abandoned: Final = Counter(
            "pointsman_limit_abandoned",
            "Requests whose end was never reported, and whose hold ended.",
            registry=registry,
        )
        self.overflowed: Final = Counter(
            "pointsman_limit_overflowed",
            "Requests counted together with those of other scopes, since the shard has no room for more counts.",
            ["limit"],
            registry=registry,
        )
        self.miscounted: Final = Counter(
            "pointsman_limit_costs_failed",
            "Requests whose cost expression had no value; their tokens were counted as they are.",
            ["limit"],
            registry=registry,
        )
        self.spent: Final = Counter(
            "pointsman_budget_spent_dollars",
            "Money that requests cost, by budget. Counted by the budget's keeper; the usage ledger has exact sums.",
            ["budget"],
            registry=registry,
        )
        self.reached: Final = Counter(
            "pointsman_budget_reached",
            "Budgets of one scope that reached the warning amount (soft) or the whole amount (hard), once a period.",
            ["budget", "level"],
            registry=registry,
        )
        self.unpriced: Final = Counter(
            "pointsman_budget_unpriced",
            "Requests that used tokens of a model without a price, which no budget counts.",
            ["model"],
            registry=registry,
        )
        self.spending_behind: Final = Gauge(
            "pointsman_budget_events_behind",
            "Events in the stream whose cost isn't in the budgets kept here yet.",
            registry=registry,
        )
        self._shards: Final = Gauge("pointsman_limit_shards", "Shards of counts kept here.", registry=registry)
        self._open: Final = Gauge(
            "pointsman_limit_open", "Charges of requests that haven't ended, kept here.", registry=registry
        )

    def set_sources(self, shards: Callable[[], float], charges: Callable[[], float]) -> None:
        """Set the sources of the gauges."""
        self._shards.set_function(shards)
        self._open.set_function(charges)

    def count_decision(self, limit: str, outcome: str) -> None:
        """Count a request checked by a limit."""
        key = (limit, outcome)
        child = self._decided.get(key)
        if child is None:
            child = self._decided[key] = self._requests.labels(*key)
        child.total += 1

    def count_settled(self, limit: str, reserved: float, used: float) -> None:
        """Count a request that ended."""
        children = self._settled.get(limit)
        if children is None:
            children = self._tokens.labels(limit, "reserved"), self._tokens.labels(limit, "used")
            self._settled[limit] = children
        of_reserved, of_used = children
        of_reserved.total += reserved
        of_used.total += used

    def count_shard_move(self, how: str) -> None:
        """Count a shard that was taken over or given up."""
        self._moves.labels(how).inc()
