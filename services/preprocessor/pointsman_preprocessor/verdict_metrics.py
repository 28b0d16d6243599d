"""Counts the verdicts of processors, and logs each failure once."""

from typing import Final

from prometheus_client import CollectorRegistry

from pointsman_plugins.preprocessing import IDENTITY, Incoming
from pointsman_runtime.telling.counting import Count, Counter
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.plan_labels import PlanLabels

_log = Log("policy")


class VerdictMetrics:
    """One of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._verdicts: Final = Counter(
            "pointsman_policy_verdicts",
            "Verdicts of request processors that report one, by instance, outcome and the client's plan.",
            ["stage", "outcome", "plan"],
            registry=registry,
        )
        self._children: Final[dict[tuple[str, str, str], Count]] = {}
        self._plans: Final = PlanLabels()
        self._told: Final[set[tuple[str, type[Exception]]]] = set()

    def count_verdicts(self, incoming: Incoming) -> None:
        """Count a request whose processors have run, completely or not."""
        if not incoming.verdicts:
            return
        plan = self._plans.label_of(str((incoming.read(IDENTITY) or {}).get("plan") or ""))
        children = self._children
        for verdict in incoming.verdicts:
            key = (verdict.processor, verdict.outcome, plan)
            child = children.get(key)
            if child is None:
                child = children[key] = self._verdicts.labels(*key)
            child.total += 1
        for failure in incoming.failures:
            told = (failure.processor, type(failure.error))
            if told not in self._told:
                self._told.add(told)
                _log.error(
                    "processor_failed",
                    failure.error,
                    processor=failure.processor,
                    request_id=incoming.envelope.request_id,
                    hint="logged once; pointsman_policy_verdicts counts every request",
                )
