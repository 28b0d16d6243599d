"""Engines whose speed changed in the middle of a recording, from recorded times over predicted ones."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from pointsman_simulator.twin.following import Followed, RecordedTraffic
from pointsman_simulator.twin.measured import Floats

LEAST_CHANGE: Final = 0.15
"""A smaller change of speed is within what traffic does to a fitted engine."""
_LEAST_REQUESTS: Final = 25
"""Before and after a change."""
_SURE: Final = 6.0
"""Standard errors by which the medians before and after a change differ at least."""
_FIXED_MS: Final = 20.0
"""Added to both times, so that the ratios of short ones say little."""
_LEAST_WAIT_MS: Final = 100.0
"""Below this predicted wait for the first token, the way to the engine says more than its prefill."""
_LEAST_TOKENS: Final = 8
"""An answer shorter than this says little about decoding."""


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """From `at_ms` on an engine took `factor` times as long as before."""

    engine: str
    at_ms: float
    factor: float
    of: str
    """`decoding` or `prefill`."""
    before: int
    """Requests before and after, up to the changes around this one."""
    after: int

    def __str__(self) -> str:
        pace = f"{self.factor:.2f} times slower" if self.factor > 1 else f"{1 / self.factor:.2f} times faster"
        return f"{self.engine} was {pace} ({self.of})"


def speed_changes(recorded: RecordedTraffic, run: Followed, ways: Floats) -> list[SpeedChange]:
    """The changes of each engine in order of time; `ways` are the times beside the engine. Of prefill only where
    decoding shows none: a slow engine is slow in both."""
    found: list[SpeedChange] = []
    engines = np.array(recorded.engines)
    tokens = np.array([request.output_tokens for request in recorded.requests])
    decoding = _log_ratio(recorded.decoding, run.ended - run.first)
    decoding[tokens < _LEAST_TOKENS] = np.nan
    waiting = _log_ratio(recorded.first - recorded.sent - ways, run.first - recorded.sent)
    waiting[~(run.first - recorded.sent >= _LEAST_WAIT_MS)] = np.nan
    for engine in sorted(set(recorded.engines)):
        for of, ratios in (("decoding", decoding), ("prefill", waiting)):
            rows = np.flatnonzero((engines == engine) & np.isfinite(ratios))
            times = recorded.sent[rows]
            own = [
                SpeedChange(
                    engine=engine,
                    at_ms=float(times[place]),
                    factor=float(np.exp(size)),
                    of=of,
                    before=before,
                    after=after,
                )
                for place, size, before, after in _steps(ratios[rows])
            ]
            found += own
            if own:
                break
    return sorted(found, key=lambda change: change.at_ms)


def _log_ratio(observed: Floats, predicted: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.log(np.maximum(observed, 0.0) + _FIXED_MS) - np.log(predicted + _FIXED_MS)


def _steps(values: Floats, offset: int = 0) -> list[tuple[int, float, int, int]]:
    """Where a row of noisy values steps up or down: (index, size, values before it, values after it). The surest step
    splits the row, and both parts are searched again."""
    place = _surest(values)
    if place is None:
        return []
    before, after = values[:place], values[place:]
    size = float(np.median(after) - np.median(before))
    return [
        *_steps(before, offset),
        (offset + place, size, len(before), len(after)),
        *_steps(after, offset + place),
    ]


def _surest(values: Floats) -> int | None:
    count = len(values)
    if count < 2 * _LEAST_REQUESTS:
        return None
    # Outliers (a queue that was there or not) are clipped: sums of what is left find the place.
    middle = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    clipped = np.clip(values, middle - 0.7, middle + 0.7)
    places = np.arange(_LEAST_REQUESTS, count - _LEAST_REQUESTS + 1)
    sums = np.cumsum(clipped)
    left, right = sums[places - 1] / places, (sums[-1] - sums[places - 1]) / (count - places)
    place = int(places[np.argmax(np.abs(right - left) * np.sqrt(places * (count - places)))])
    before, after = values[:place], values[place:]
    size = abs(float(np.median(after) - np.median(before)))
    noise = max(min(_spread(before), _spread(after), spread), 1e-3)
    sure = size > _SURE * 1.2533 * noise * np.sqrt(1 / len(before) + 1 / len(after))
    return place if sure and size > np.log1p(LEAST_CHANGE) else None


def _spread(values: Floats) -> float:
    """Standard deviation, from the median of the distances to the median."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def slices(
    recorded: RecordedTraffic, predicted: Floats, observed: Floats, count: int
) -> list[tuple[float, float, float]]:
    """The recording in `count` slices of time: (middle in ms, mean recorded, mean predicted) of those with requests."""
    known = np.isfinite(predicted) & np.isfinite(observed)
    if not known.any():
        return []
    times = recorded.arrived
    begin, length = float(times[0]), float(times[-1] - times[0] + 1.0) / count
    found: list[tuple[float, float, float]] = []
    for number in range(count):
        since = begin + number * length
        inside = known & (times >= since) & (times < since + length)
        if inside.any():
            found.append((since + length / 2, float(observed[inside].mean()), float(predicted[inside].mean())))
    return found
