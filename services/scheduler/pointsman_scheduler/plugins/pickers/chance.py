"""Pickers that leave something to chance: `random`, `weighted-random`, `top-k`, `power-of-two`."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.arrays import Floats
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.plugins.pickers.ranking import PickerParams, RankingPicker, best


class Random(RankingPicker):
    """Each order of the candidates is as likely; totals don't matter."""

    type_name: ClassVar[str] = "random"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        order: list[int] = np.argsort(candidates.dice.uniforms(candidates.size)).tolist()
        return order[: self.endpoints]


class WeightedRandom(RankingPicker):
    """In proportion to the totals, without replacement: algorithm A-Res of Efraimidis and Spirakis (Information
    Processing Letters 97, 2006), keys `u^(1/total)`. Candidates with a total of 0 come last; all at 0: as `random`."""

    type_name: ClassVar[str] = "weighted-random"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        draws = candidates.dice.uniforms(candidates.size)
        weighted = totals > 0
        # log(u)/w orders as u^(1/w) does and keeps apart what would underflow to 0. Logs are at most 0, so draws of
        # weightless candidates, moved below every log, keep an order of their own.
        keys = np.log(np.maximum(draws, np.finfo(np.float64).tiny)) / np.where(weighted, totals, 1.0)
        keys = np.where(weighted, keys, draws + keys.min(initial=0.0) - 2.0)
        order: list[int] = np.argsort(-keys, kind="stable").tolist()
        return order[: self.endpoints]


class TopKParams(PickerParams):
    k: int = Field(default=3, ge=1)
    """Among how many of the best the choice falls."""


class TopK(RankingPicker):
    """One of the `k` best, each as likely; fallbacks follow by total."""

    type_name: ClassVar[str] = "top-k"
    params_type: ClassVar[type[Params]] = TopKParams

    def __init__(self, name: str, params: TopKParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._k: Final = params.k

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        order = best(totals, max(self.endpoints, self._k), candidates.dice)
        order.insert(0, order.pop(candidates.dice.below(min(self._k, len(order)))))
        return order[: self.endpoints]


class PowerOfTwo(RankingPicker):
    """The better of two drawn at random (Mitzenmacher, 2001), its rival next, then others by total."""

    type_name: ClassVar[str] = "power-of-two"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        count, dice = candidates.size, candidates.dice
        if count == 1:
            return (0,)
        first = dice.below(count)
        second = dice.below(count - 1)
        second += second >= first
        pair = [first, second] if totals[first] >= totals[second] else [second, first]
        rest = [index for index in best(totals, self.endpoints, dice) if index not in pair]
        return [*pair, *rest][: self.endpoints]
