"""Pickers that leave something to chance: `random`, `weighted-random`, `top-k`, `power-of-two`."""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Picker
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import PickerParams, best


class Random(Picker[PickerParams]):
    """Each order of the candidates is as likely; totals don't matter."""

    type_name = "random"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        order: list[int] = np.argsort(candidates.dice.uniforms(candidates.size)).tolist()
        return order[: self.params.endpoints]


class WeightedRandom(Picker[PickerParams]):
    """Draws in proportion to the totals, without replacement: algorithm A-Res of Efraimidis and Spirakis (Information
    Processing Letters 97, 2006), keys `u^(1/total)`. Candidates with a total of 0 come last; all at 0: as `random`."""

    type_name = "weighted-random"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        draws = candidates.dice.uniforms(candidates.size)
        weighted = totals > 0
        # log(u)/w orders as u^(1/w) does and keeps apart what would underflow to 0. Logs are at most 0, so draws of
        # weightless candidates, moved below every log, keep an order of their own.
        keys = np.log(np.maximum(draws, np.finfo(np.float64).tiny)) / np.where(weighted, totals, 1.0)
        keys = np.where(weighted, keys, draws + keys.min(initial=0.0) - 2.0)
        order: list[int] = np.argsort(-keys, kind="stable").tolist()
        return order[: self.params.endpoints]


class TopKParams(PickerParams):
    k: int = Field(default=3, ge=1)
    """Number of best candidates that the choice is made from."""


class TopK(Picker[TopKParams]):
    """One of the `k` best, each as likely; fallbacks follow by total."""

    type_name = "top-k"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        order = best(totals, max(self.params.endpoints, self.params.k), candidates.dice)
        order.insert(0, order.pop(candidates.dice.below(min(self.params.k, len(order)))))
        return order[: self.params.endpoints]


class PowerOfTwo(Picker[PickerParams]):
    """The better of two random candidates (Mitzenmacher, 2001); the other one next, then the rest by total."""

    type_name = "power-of-two"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        count, dice = candidates.size, candidates.dice
        if count == 1:
            return (0,)
        first = dice.below(count)
        second = dice.below(count - 1)
        second += second >= first
        pair = [first, second] if totals[first] >= totals[second] else [second, first]
        rest = [index for index in best(totals, self.params.endpoints, dice) if index not in pair]
        return [*pair, *rest][: self.params.endpoints]
