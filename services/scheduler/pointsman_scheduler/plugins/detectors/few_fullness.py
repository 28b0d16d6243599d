"""`utilization` for a few workers, in numbers: 15 us of a measurement of eight less than in columns, 5 % of a request
(`python -m benchmarks.fast_paths`). From some 60 workers on, columns cost less.
"""

from collections.abc import Sequence
from typing import Protocol

from pointsman_plugins.scheduling.arrays import Bools


class FullAt(Protocol):
    """When a worker is full: the parameters of `utilization`."""

    @property
    def queue(self) -> float: ...
    @property
    def kv(self) -> float: ...
    @property
    def burst(self) -> int: ...
    @property
    def pass_tokens(self) -> int: ...


def mean_fullness(values: Sequence[float]) -> float:
    """How full these workers are together: the mean, where none counts for more than 1. When all are full, the fullness
    of the least full one."""
    least = min(values)
    if least >= 1.0:
        return least
    return sum([min(1.0, value) for value in values]) / len(values)


def fullest_of_few(values: Sequence[float | None], stages: tuple[Bools, ...]) -> float:
    """Like `utilization.fullest`; None for a worker that doesn't count."""
    saturation = 0.0
    for stage in stages:
        chosen = [value for value, does in zip(values, stage.tolist(), strict=True) if does and value is not None]
        if chosen:
            saturation = max(saturation, mean_fullness(chosen))
    return saturation


def fullness_of_few(figures: list[list[float]], params: FullAt) -> list[float]:
    """How full each worker is, by branches. Equal to the last digit, so some differences are added that look
    superfluous."""
    pass_tokens, burst, full_queue, full_cache = float(params.pass_tokens), params.burst, params.queue, params.kv
    values: list[float] = []
    for waiting, prefill_tokens, reported_waiting, reported_running, kv_usage in zip(*figures, strict=True):
        queue = waiting
        if waiting and reported_waiting <= 0.0:
            ahead = prefill_tokens
            if pass_tokens > ahead:
                ahead += pass_tokens - ahead
            absorbed = waiting * (pass_tokens / ahead)
            if burst > absorbed:
                absorbed += burst - absorbed
            by_batch = reported_running / 4.0
            if by_batch > absorbed:
                absorbed += by_batch - absorbed
            queue = max(waiting - absorbed, 0.0)
        value, by_cache = queue / full_queue, kv_usage / full_cache
        if by_cache > value:
            value += by_cache - value
        values.append(value)
    return values
