"""The cells of the matrix: each row in each shape, and samples of them."""

import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, get_args

from pointsman_testing.unruly.rows import ROWS, MisbehaviourRow

Door = Literal["frontend", "envoy"]
Form = Literal["whole", "stream"]
DOORS: Final[tuple[Door, ...]] = get_args(Door)
FORMS: Final[tuple[Form, ...]] = get_args(Form)
BAD: Final[dict[int, tuple[int, ...]]] = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 8: (1, 4, 8)}
"""Engines of a pool, to how many of them misbehave: one, half, all."""


class Place(NamedTuple):
    """A pool of its own, and the door that its clients use."""

    door: Door
    engines: int
    form: Form

    @property
    def name(self) -> str:
        """Name of pool and model, in one word, so that it isn't broken across lines."""
        return f"{self.door[0]}{self.engines}{self.form[0]}"

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of its engines."""
        return tuple(f"{self.name}e{number}" for number in range(1, self.engines + 1))


class Cell(NamedTuple):
    """One row in one shape."""

    row: MisbehaviourRow
    place: Place
    bad: int
    """How many of the engines misbehave."""

    def __str__(self) -> str:
        return f"{self.row.name}, {self.bad} of {self.place.engines}, {self.place.door}, {self.place.form}"

    @property
    def bad_workers(self) -> tuple[str, ...]:
        """Names of the engines that misbehave."""
        return self.place.workers[: self.bad]

    @property
    def all_bad(self) -> bool:
        """Whether no good engine is there."""
        return self.bad == self.place.engines


def places() -> Iterator[Place]:
    """Every pool of the matrix."""
    for door in DOORS:
        for engines in BAD:
            for form in FORMS:
                yield Place(door, engines, form)


def cells() -> list[Cell]:
    """The whole matrix."""
    return [Cell(row, place, bad) for row in ROWS for place in places() for bad in BAD[place.engines]]


def sample(seed: int, count: int, among: Sequence[Cell] | None = None) -> list[Cell]:
    """So many cells by this seed, with as many different rows and pools as there are."""
    chance = random.Random(seed)
    left = list(cells() if among is None else among)
    chance.shuffle(left)
    rows: dict[str, int] = {}
    pools: dict[Place, int] = {}
    found: list[Cell] = []
    while left and len(found) < count:
        best = min(left, key=lambda cell: (rows.get(cell.row.name, 0), pools.get(cell.place, 0)))
        left.remove(best)
        rows[best.row.name] = rows.get(best.row.name, 0) + 1
        pools[best.place] = pools.get(best.place, 0) + 1
        found.append(best)
    return found
