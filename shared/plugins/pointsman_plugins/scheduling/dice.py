"""Random numbers that a seed reproduces on any machine, cheap enough to make a new source for every decision."""

from typing import Final

import numpy as np
from msgspec import Struct

from pointsman_plugins.scheduling.arrays import Floats

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


class Dice(Struct, eq=False):
    """SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one addition and one mix for each number."""

    state: int
    """The seed, at first; its lowest 64 bits count."""

    def _next(self) -> int:
        self.state = state = (self.state + _GAMMA) & _MASK
        state = ((state ^ (state >> 30)) * _MIX_1) & _MASK
        state = ((state ^ (state >> 27)) * _MIX_2) & _MASK
        return state ^ (state >> 31)

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""
        return (self._next() * limit) >> 64

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return (self._next() >> 11) * 2.0**-53

    def uniforms(self, count: int) -> Floats:
        """`count` numbers in [0, 1); the same as `count` calls of `uniform`."""
        states = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA) + np.uint64(self.state & _MASK)
        self.state = (self.state + count * _GAMMA) & _MASK
        states = (states ^ (states >> np.uint64(30))) * np.uint64(_MIX_1)
        states = (states ^ (states >> np.uint64(27))) * np.uint64(_MIX_2)
        return ((states ^ (states >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
