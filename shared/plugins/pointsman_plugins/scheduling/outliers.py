"""The experience of requests at one worker, and whether it is an outlier among its peers.

As in Envoy's outlier detection (https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier), an
outlier is ejected after consecutive failures or for its share of failures, and ejections back off. It differs in three
ways. While it is ejected, a worker gets one trial request for each interval, and answers end the ejection, not time. A
worker that fails in part is compared with its peers, and stays in when they fail alike. A worker that doesn't answer is
an outlier, too: `eject` with `hung`.
"""

from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

_NEVER: Final = float("-inf")

HALF_S: Final = 5.0
"""Half of the window in which answers and failures are counted: it covers the last 5 to 10 s."""
CONSECUTIVE: Final = 3
"""Failures without an answer between them that eject, each within `FAILURE_WINDOW_S` of the one before."""
FAILURE_WINDOW_S: Final = 10.0
LEAST_FAILURES: Final = 5
"""In the window, before the share of failures ejects."""
WORSE_BY: Final = 0.3
"""How much greater than its peers' share of failures a worker's own must be."""
DEAD_FROM: Final = 0.9
"""From this share on a worker is ejected whatever its peers do."""
MOST_EJECTED: Final = 0.5
"""Part of the workers that may be ejected for failing in part."""
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 6.0
"""Longest time between two trials: a worker that is well again has its share back within 10 s."""
NEXT_TRIAL_S: Final = 0.5
"""Until the next trial after one that was answered."""
TRIALS: Final = 3
"""Trials that must be answered in a row before a worker that failed requests has its share again. For one that refused
connections, or didn't answer, one is enough: such a worker has been restarted."""
FORGIVEN_AFTER_S: Final = 10.0
"""Each time as long as this without an ejection takes one ejection back. Until the first of them, `PROBATION_FAILURES`
stands for `LEAST_FAILURES`."""
PROBATION_FAILURES: Final = 2


@dataclass(slots=True)
class Tally:
    """Answers and failures of the last 5 to 10 s."""

    half: int = 0
    good: int = 0
    bad: int = 0
    good_before: int = 0
    bad_before: int = 0

    def add_results(self, now: float, *, good: int = 0, bad: int = 0) -> None:
        """Add results. A negative number takes back what was counted before."""
        if now // HALF_S != self.half:
            self._roll(now)
        self.good += good
        self.bad += bad

    def count_results(self, now: float) -> tuple[int, int]:
        """Answers and failures."""
        self._roll(now)
        return max(0, self.good + self.good_before), self.bad + self.bad_before

    def _roll(self, now: float) -> None:
        half = int(now // HALF_S)
        if half == self.half:
            return
        last = half == self.half + 1
        self.good_before, self.bad_before = (self.good, self.bad) if last else (0, 0)
        self.good = self.bad = 0
        self.half = half


@dataclass(slots=True)
class Peers:
    """The workers that one is compared with: those of its pool that aren't ejected."""

    shares: list[float] = field(default_factory=list[float])
    """Failures among the results of each that has any."""
    ejected: float = 0.0
    """Part of all workers that is ejected."""

    @property
    def share(self) -> float | None:
        """The median of their shares, of two the lower one, so that workers that fail don't hide each other while as
        many do well; None without results."""
        return median_low(self.shares) if self.shares else None


@dataclass(slots=True)
class Standing:
    """The standing of one life of a worker. Times are monotonic seconds."""

    tally: Tally = field(default_factory=Tally)
    failures: int = 0
    """Failures without an answer between them."""
    cuts: int = 0
    """Answers that broke off, without a whole answer between them."""
    failed_at: float = _NEVER
    last: str = ""
    """How the last request failed, in words."""
    ejected: bool = False
    hung: bool = False
    """Ejected because it doesn't answer."""
    trials: int = TRIALS
    """Trials that end this ejection."""
    reason: str = ""
    """Why it is ejected, in words for an operator."""
    ejected_at: float = _NEVER
    returned_at: float = _NEVER
    ejections: int = 0
    passed: int = 0
    """Trials that were answered in a row."""
    retry_at: float = 0.0
    """When the next trial may be sent; meaningful while ejected."""

    def record_failure(
        self,
        what: str,
        now: float,
        sent_at: float | None,
        *,
        cut: bool = False,
        unsure: bool = False,
        begun: bool = False,
    ) -> None:
        """A request failed. `what`: how, in words; `sent_at`: when it was sent there, None where that is unknown;
        `cut`: its answer broke off; `unsure`: or its client left, so only its peers' share of failures can tell;
        `begun`: `answer` was called for it."""
        self.tally.add_results(now, bad=1, good=-1 if begun else 0)
        recent = now - self.failed_at <= FAILURE_WINDOW_S
        self.failed_at, self.last = now, what
        if not recent:
            self.failures = self.cuts = 0
        if unsure:
            self.cuts = max(self.cuts, 1)
        elif cut:
            self.cuts += 1
        else:
            self.failures += 1
        if self.ejected:
            self.passed = 0
            if sent_at is not None and sent_at >= self.ejected_at:  # a trial; others were on their way before
                self.ejections += 1
                self.retry_at = now + self._interval()
                self.reason = f"its last trial failed: {what}"

    @property
    def is_failing(self) -> bool:
        """Whether its last request failed."""
        return self.failures > 0 or self.cuts > 0

    @property
    def may_be_outlier(self) -> bool:
        """Whether the last failure may make it an outlier: only then peers have to be looked at."""
        if self.ejected:
            return False
        least = PROBATION_FAILURES if self.failed_at - self.returned_at < FORGIVEN_AFTER_S else LEAST_FAILURES
        return max(self.failures, self.cuts) >= CONSECUTIVE or self.tally.bad + self.tally.bad_before >= least

    def eject_if_outlier(self, what: str, peers: Peers, now: float) -> bool:
        """Eject the worker if it is an outlier; `what`: the last failure, in words. Returns whether it was ejected."""
        good, bad = self.tally.count_results(now)
        share, others = bad / max(1, good + bad), peers.share
        if max(self.failures, self.cuts) >= CONSECUTIVE:
            if share < DEAD_FROM and others is not None and others >= share:
                return False
        elif others is None or peers.ejected >= MOST_EJECTED or share <= others + WORSE_BY:
            return False
        told = "" if others is None else f"; of its peers' requests {others:.0%} failed"
        self.eject_worker(f"{bad} of its last {good + bad} requests failed, the last with: {what}{told}", now)
        return True

    def eject_worker(self, reason: str, now: float, *, hung: bool = False, trials: int = TRIALS) -> None:
        """Send trials only, until so many were answered in a row."""
        if not self.ejected:
            calm = now - self.returned_at
            forgiven = self.ejections if calm == float("inf") else int(calm / FORGIVEN_AFTER_S)
            self.ejections = max(0, self.ejections - forgiven) + 1
            self.ejected, self.ejected_at, self.passed = True, now, 0
            self.retry_at = now + self._interval()
        self.hung, self.trials = hung, trials
        self.reason = reason

    def note_trial(self, now: float) -> None:
        """A trial was sent: no other one until an interval has passed."""
        self.retry_at = now + self._interval()

    def record_answer(self, now: float, sent_at: float, *, whole: bool) -> bool:
        """An answer began, or came as a whole. Returns whether the worker gets its share again."""
        self.failures = 0
        if whole:
            self.cuts = 0
        if not self.ejected or sent_at < self.ejected_at or (self.cuts and not whole):
            return False
        self.passed += 1
        if self.passed < self.trials:
            self.retry_at = now + NEXT_TRIAL_S
            return False
        self._return(now)
        return True

    def acquit_worker(self, now: float) -> None:
        """Give it its share again: it was ejected for failures that weren't its own."""
        self.ejections -= 1
        self._return(now)

    def _return(self, now: float) -> None:
        self.ejected = self.hung = False
        self.failures = self.cuts = 0
        self.reason = ""
        self.returned_at = now
        self.tally = Tally()

    def _interval(self) -> float:
        return min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(self.ejections - 1, 10))
