"""Bounds the time of a plugin. A plugin can't be interrupted: one that was too slow several times is left out for a
while."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import Field

from pointsman_core.units import PositiveDuration
from pointsman_plugins.plugin import Params, Reference

T = TypeVar("T")


class TimedParams(Params):
    of: Reference
    """Name of the plugin to call."""
    most: PositiveDuration
    """Time that one call may take."""
    times: int = Field(default=3, ge=1)
    """Calls in a row that may be slower; then the plugin is left out."""
    pause: PositiveDuration = 10.0
    """How long it is left out. Then one call tries it again."""


class Stopwatch:
    """Times the calls of one plugin. `clock` is monotonic, in seconds."""

    def __init__(self, params: TimedParams, clock: Callable[[], float] = time.perf_counter) -> None:
        self._params: Final = params
        self._clock: Final = clock
        self._slow = 0
        self._out_until = -1.0
        self.last_s = 0.0
        """The time of the last call."""

    def call(self, work: Callable[[], T]) -> T | None:
        """The result; None while the plugin is left out."""
        began = self._clock()
        if began < self._out_until:
            return None
        try:
            return work()
        finally:
            ended = self._clock()
            self.last_s = ended - began
            if self.last_s <= self._params.most:
                self._slow = 0
            else:
                self._slow += 1
                if self._slow >= self._params.times:
                    self._slow = self._params.times - 1
                    self._out_until = ended + self._params.pause

    @property
    def words(self) -> str:
        """The last time, and whether the plugin is left out, for the decision."""
        told = f"{self.last_s * 1e6:.0f} µs"
        return f"left out: took {told}" if self._clock() < self._out_until else told
