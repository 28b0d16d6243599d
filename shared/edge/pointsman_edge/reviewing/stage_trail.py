"""What the stages on the way back said about one answer, as reports."""

from typing import Final

from pointsman_contracts.journey import Stage, StageReport

NOTE_LIMIT: Final = 512
"""Characters of a note that are kept."""
_WEIGHT: Final = {"passed": 0, "replaced": 1, "skipped": 2, "failed": 3, "blocked": 4}


class StageTrail:
    """One entry for each stage, however often it was asked."""

    def __init__(self) -> None:
        self._reports: dict[int, StageReport] = {}

    def add(self, position: int, stage: Stage, outcome: str, took_s: float, instance: str, note: str | None) -> None:
        """A stage was asked. The gravest outcome stands, with its note; the times add up."""
        took_ms = round(took_s * 1000, 3)
        note = None if note is None else note[:NOTE_LIMIT]
        report = StageReport(stage=stage.service, instance=instance, outcome=outcome, took_ms=took_ms, note=note)
        before = self._reports.get(position)
        if before is not None:
            graver = report if _WEIGHT[outcome] > _WEIGHT[before.outcome] else before
            report = graver.model_copy(update={"took_ms": round(before.took_ms + took_ms, 3)})
        self._reports[position] = report

    def reports(self) -> tuple[StageReport, ...]:
        """In the order of the itinerary."""
        return tuple(self._reports[position] for position in sorted(self._reports))


def in_shadow(report: StageReport) -> StageReport:
    """The report of a stage whose verdict isn't acted on. That it failed is said as of any other."""
    return report if report.outcome == "failed" else report.model_copy(update={"outcome": f"shadow_{report.outcome}"})
