"""The progress of a batch in words. Time is an argument."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

ENDED = ("completed", "failed", "expired", "cancelled")


class BatchProgress(NamedTuple):
    """How far a batch is."""

    status: str
    done: int
    failed: int
    total: int
    left_s: float | None
    """Seconds until all lines are done at the pace so far; None while there is none."""

    @classmethod
    def of(cls, batch: Mapping[str, Any], now_s: float) -> "BatchProgress":
        """From a batch of the API; `now_s` in unix seconds."""
        counts: Mapping[str, int] = batch.get("request_counts") or {}
        failed, total = counts.get("failed", 0), counts.get("total", 0)
        done = counts.get("completed", 0) + failed
        began: int | None = batch.get("in_progress_at")
        left_s = None
        if batch["status"] == "in_progress" and began is not None and done:
            left_s = max(0.0, now_s - began) / done * (total - done)
        return cls(batch["status"], done, failed, total, left_s)

    @property
    def ended(self) -> bool:
        """Whether the batch doesn't change any more."""
        return self.status in ENDED

    @property
    def words(self) -> str:
        """E.g. `in_progress: 40 of 100 lines, 2 failed, about 0:01:30 left`."""
        if not self.total:
            # Its file isn't checked yet, or was refused.
            return f"{self.status}: no line has run"
        text = f"{self.status}: {self.done:,} of {self.total:,} lines"
        if self.failed:
            text += f", {self.failed:,} failed"
        if self.left_s is not None:
            text += f", about {timedelta(seconds=round(self.left_s))} left"
        return text
