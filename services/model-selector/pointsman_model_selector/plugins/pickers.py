"""Pickers over models."""

import math
from collections.abc import Sequence
from random import Random

from pointsman_plugins.selecting import ModelPicker


class MaxScoreModel(ModelPicker):
    """`max-score`: the highest total; ties are dealt by chance."""

    type_name = "max-score"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        if len(set(totals)) == len(totals):
            return sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        draws = [(-total, random.random(), position) for position, total in enumerate(totals)]
        return [position for _, _, position in sorted(draws)]


class WeightedRandomModel(ModelPicker):
    """`weighted-random`: by chance in proportion to the total.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006), algorithm A-Res: the largest
    u^(1/w) first, by its logarithm, which small weights don't make 0. Models with a total of 0 come last, among
    themselves by chance.
    """

    type_name = "weighted-random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        # Of the largest: a weight may be so small that the quotient is infinite, which then is the truth.
        largest = max(totals)
        # `random()` may be 0 and is never 1.
        draws = [math.log(1 - random.random()) for _ in totals]

        def key(position: int) -> tuple[bool, float]:
            weight = totals[position] / largest if largest > 0 else 0.0
            return weight <= 0, -draws[position] / weight if weight > 0 else draws[position]

        return sorted(range(len(totals)), key=key)


class UniformRandom(ModelPicker):
    """`random`: by chance, whatever the totals."""

    type_name = "random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        positions = list(range(len(totals)))
        random.shuffle(positions)
        return positions
