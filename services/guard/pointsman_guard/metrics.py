"""Metrics of the guard: categories and actions, never a text."""

from typing import Final

from prometheus_client import CollectorRegistry

from pointsman_guard.domain.policy import NOTHING, GuardPolicy, Judgement
from pointsman_plugins.guarding import Direction
from pointsman_runtime.telling.counting import Count, Counter, Histogram
from pointsman_runtime.telling.plan_labels import PlanLabels

_BUCKETS: Final = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0)


class GuardMetrics:
    """Prometheus collectors of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._checked: Final = Counter(
            "pointsman_guard_checked", "Prompts and windows of answers, by outcome and the client's plan.",
            ["direction", "policy", "outcome", "plan"],
            registry=registry,
        )  # fmt: skip
        self._found: Final = Counter(
            "pointsman_guard_found", "Findings by category and action.",
            ["direction", "policy", "category", "action"], registry=registry,
        )  # fmt: skip
        self._failed: Final = Counter(
            "pointsman_guard_detector_failures", "Checks in which a detector failed.", ["policy", "detector"],
            registry=registry,
        )  # fmt: skip
        self._seconds: Final = Histogram(
            "pointsman_guard_check_seconds", "Time of one check, waiting for guardians included.", ["direction"],
            buckets=_BUCKETS, registry=registry,
        )  # fmt: skip
        self._outcomes: dict[tuple[str, str, str, str], Count] = {}
        self._plans: Final = PlanLabels()
        self._times: Final = {name: self._seconds.labels(name) for name in ("request", "response")}

    def count_judgement(
        self, direction: Direction, policy: GuardPolicy, judgement: Judgement, took_s: float, plan: str
    ) -> None:
        """Count a judgement; `plan` is the client's, empty when unknown."""
        self._times[direction].observe(took_s)
        if judgement is NOTHING:
            self._count(direction, policy.name, "passed", plan)
            return
        outcome = "failed" if judgement.failures and judgement.blocked is None else judgement.verdict
        self._count(direction, policy.name, outcome, plan)
        if judgement.blocked is not None:
            self._found.labels(direction, policy.name, judgement.blocked.category, "block").inc()
        for action, findings in (("redact", judgement.redact), ("flag", judgement.flagged)):
            for finding in findings:
                self._found.labels(direction, policy.name, finding.category, action).inc()
        for failure in judgement.failures:
            self._failed.labels(policy.name, failure.detector).inc()

    def _count(self, direction: Direction, policy: str, outcome: str, plan: str) -> None:
        key = (direction, policy, outcome, self._plans.label_of(plan))
        counter = self._outcomes.get(key)
        if counter is None:
            counter = self._outcomes[key] = self._checked.labels(*key)
        counter.total += 1
