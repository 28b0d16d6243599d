"""Weighted shares that stick: the same key gets the same arm for as long as the weights stay."""

import hashlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

_RANGE: Final = 2.0**64


class Dealer:
    """Deals keys to arms. Equal for every replica and in every life of a process."""

    def __init__(self, name: str, weights: Mapping[str, float]) -> None:
        """Arm → weight above 0. `name` is part of the dealing, so that two dealers don't deal alike; the order of arms
        matters when weights change: a key moves only across the borders that moved."""
        self._name: Final = name
        total = sum(weights.values())
        self._borders: Final = [
            (border / total, arm) for border, arm in zip(accumulate(weights.values()), weights, strict=True)
        ]

    def arm_of(self, key: str) -> str:
        if len(self._borders) == 1:
            return self._borders[0][1]
        digest = hashlib.blake2b(f"{self._name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / _RANGE
        return next((arm for border, arm in self._borders if place < border), self._borders[-1][1])
