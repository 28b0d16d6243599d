"""Pickers over models."""

from collections.abc import Sequence
from random import Random

from pointsman_model_selector.domain.selecting import ModelPicker


class MaxScore(ModelPicker):
    """`max-score`: the highest total; ties are dealt by chance."""

    type_name = "max-score"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        ties = [random.random() for _ in totals]
        return sorted(range(len(totals)), key=lambda position: (-totals[position], ties[position]))


class WeightedRandom(ModelPicker):
    """`weighted-random`: by chance in proportion to the total.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006), algorithm A-Res: the largest
    u^(1/w) first. Models with a total of 0 come last, among themselves by chance.
    """

    type_name = "weighted-random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        keys = [(random.random() ** (1 / total) if total > 0 else -random.random()) for total in totals]
        return sorted(range(len(totals)), key=lambda position: -keys[position])


class UniformRandom(ModelPicker):
    """`random`: by chance, whatever the totals."""

    type_name = "random"

    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        positions = list(range(len(totals)))
        random.shuffle(positions)
        return positions
