"""Predicted against recorded times, and whether predictions of other policies are to be trusted.

The rule is in docs/twin.md; what it says and this file are one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

import numpy as np

from pointsman_simulator.twin.drift import SpeedChange
from pointsman_simulator.twin.measured import Floats, Mask
from pointsman_simulator.twin.recording import RecordedPool

BARS: Final[Mapping[str, float]] = {"mean": 0.05, "p50": 0.10, "p90": 0.10, "p99": 0.15}
"""Largest share by which a predicted figure may differ from the recorded one."""
NEGLIGIBLE_MS: Final = 3.0
"""A difference that is below this is none."""
LEAST_JUDGED: Final = 100
"""Requests that a judgement needs."""
MOST_UNUSED: Final = 0.05
"""Share of the requests that may be of no use: cut off, retried, without a recorded end."""
_BY_THE_WAY: Final = ("p50", "p90")
"""Figures whose difference may also be as large as the scatter of the way to the engine and back."""
_SURE: Final = 2.0
"""Standard deviations."""
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the recording and of the twin, in ms."""

    of: str
    """`TTFT` or `E2E`."""
    name: str
    """`mean`, `p50`, `p90` or `p99`."""
    recorded: float
    predicted: float
    scatter_ms: float = 0.0
    """The standard deviation of the way to the engine and back."""
    chance_ms: float = 0.0
    """By which two runs of this policy on these arrivals differ, as a standard deviation: a choice that comes a few
    milliseconds later changes all that follow."""

    @property
    def error(self) -> float:
        """Relative to the recorded figure; positive when predicted too long."""
        return self.predicted / self.recorded - 1.0 if self.recorded else 0.0

    @property
    def is_within(self) -> bool:
        """Whether the error is within its bar. A median's error is ignored below `scatter_ms`, and any below twice
        `chance_ms`."""
        least = max(NEGLIGIBLE_MS, self.scatter_ms if self.name in _BY_THE_WAY else 0.0, _SURE * self.chance_ms)
        return abs(self.error) <= BARS[self.name] or abs(self.predicted - self.recorded) < least


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures of the same requests, recorded and predicted."""

    how: str
    """The prediction, in words."""
    requests: int
    figures: tuple[Figure, ...]

    @property
    def missed_figures(self) -> list[Figure]:
        return [figure for figure in self.figures if not figure.is_within]


def compared(
    how: str,
    recorded: Mapping[str, Floats],
    predicted: Sequence[Mapping[str, Floats]],
    scatter_ms: float,
    rows: Mask | None = None,
) -> Comparison:
    """Compare columns of times by name (`TTFT`, `E2E`). Of several predictions (seeds) the means of the figures count.
    `scatter_ms` as in `Figure`; `rows` are a mask of the requests to look at."""
    figures: list[Figure] = []
    count = 0
    for of, observed in recorded.items():
        known = np.isfinite(observed)
        for run in predicted:
            known &= np.isfinite(run[of])
        if rows is not None:
            known &= rows
        if not known.any():
            continue
        count = max(count, int(known.sum()))
        runs = [run[of][known] for run in predicted]
        means = [float(run.mean()) for run in runs]
        figures.append(
            Figure(of, "mean", float(observed[known].mean()), float(np.mean(means)), chance_ms=_chance(means))
        )
        for name, share in _QUANTILES.items():
            values = [float(np.quantile(run, share)) for run in runs]
            exact = float(np.quantile(observed[known], share))
            figures.append(
                Figure(
                    of=of,
                    name=name,
                    recorded=exact,
                    predicted=float(np.mean(values)),
                    scatter_ms=scatter_ms,
                    chance_ms=_chance(values),
                )
            )
    return Comparison(how, count, tuple(figures))


def _chance(values: Sequence[float]) -> float:
    """Standard deviation of the difference between one such value and the mean of all of them."""
    count = len(values)
    return float(np.std(values, ddof=1)) * sqrt(1.0 + 1.0 / count) if count > 1 else 0.0


@dataclass(frozen=True, slots=True)
class TwinVerdict:
    """Whether to trust the twin; each reason is one why not."""

    reasons: tuple[str, ...] = field(default=())

    @property
    def is_trusted(self) -> bool:
        return not self.reasons


def verdict(
    recording: RecordedPool, comparisons: Sequence[Comparison], changes: Sequence[SpeedChange], clock: "Clock"
) -> TwinVerdict:
    """Judge by the rule of docs/twin.md."""
    reasons = [
        f"{change} from {clock(change.at_ms)} on: {change.before} requests before, {change.after} after"
        for change in changes
    ]
    reasons += [f"{change.what} at {clock(change.at_ms)}: the twin's fleet is constant" for change in recording.changes]
    if recording.lost:
        reasons.append(f"the log lacks {recording.lost} inputs")
    unused = sum(not request.is_judged for request in recording.requests)
    if unused > MOST_UNUSED * len(recording.requests):
        share = unused / len(recording.requests)
        reasons.append(
            f"{share:.0%} of the requests are of no use: cut off, retried, split over two engines, or without an end"
        )
    for each in comparisons:
        if each.requests < LEAST_JUDGED:
            reasons.append(f"{each.how}: {each.requests} requests are too few; {LEAST_JUDGED} are the least")
        reasons += [
            f"{each.how}: {figure.of} {figure.name} {figure.predicted:,.0f} ms, recorded {figure.recorded:,.0f} "
            f"({figure.error:+.1%}; the bar is {BARS[figure.name]:.0%})"
            for figure in each.missed_figures
        ]
    if recording.policy is None:
        reasons.append("the log doesn't say which policy decided, so that only its engines could be judged")
    return TwinVerdict(tuple(reasons))


@dataclass(frozen=True, slots=True)
class Clock:
    """Writes times of a recording as those of the wall clock, in UTC."""

    began_unix_ms: float

    def __call__(self, at_ms: float) -> str:
        if not self.began_unix_ms:
            return f"{at_ms / 1000:.0f} s"
        moment = np.datetime64(int(self.began_unix_ms + at_ms), "ms")
        return str(moment)[11:19]
