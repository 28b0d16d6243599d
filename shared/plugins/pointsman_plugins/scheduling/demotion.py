"""Passive evidence: what failed attempts say about a worker, and when it is tried again.

A connection refused is proof; other failures count only when several follow each other, because one bad answer
says little. An answer with status 4xx is the client's doing and never counts. A demoted worker gets one trial
request for each interval until one succeeds (half-open); intervals double.
"""

from dataclasses import dataclass
from typing import Final

FAILURES_TO_DEMOTE: Final = 3
"""Consecutive failures, each within `FAILURE_WINDOW_S` of the one before."""
FAILURE_WINDOW_S: Final = 10.0
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0


@dataclass(slots=True)
class Trust:
    """The trust in one life of a worker, by the results of requests sent to it."""

    failures: int = 0
    failed_at: float = float("-inf")
    demotions: int = 0
    retry_at: float = 0.0
    """Monotonic time of the next trial; meaningful while demoted."""
    demoted: bool = False

    def failed(self, outcome: str, status: int | None, now: float) -> None:
        """Take note of a failed attempt; `outcome` and `status` as in `AttemptFailed`."""
        if status is not None and status < 500:
            return
        recent = now - self.failed_at <= FAILURE_WINDOW_S
        self.failures = self.failures + 1 if recent else 1
        self.failed_at = now
        if self.demoted or outcome == "refused" or self.failures >= FAILURES_TO_DEMOTE:
            self.demoted = True
            self.retry_at = now + min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.demotions, 10))
            self.demotions += 1

    def tried(self, now: float) -> None:
        """A trial request was sent: no other one until an interval has passed."""
        if self.demoted:
            self.retry_at = now + min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** max(0, min(self.demotions, 10) - 1))

    def answered(self) -> None:
        """An answer began, or the worker's own agent saw it recover."""
        self.failures = 0
        self.demotions = 0
        self.demoted = False
