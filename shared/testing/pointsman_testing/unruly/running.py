"""Runs many cells against one gateway: those of one pool one after the other, those of different pools at once."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from pointsman_testing.unruly.cells import Cell
from pointsman_testing.unruly.ground import TrialGround
from pointsman_testing.unruly.laws import Evidence, broken
from pointsman_testing.unruly.trial import SETTLED_S, settled, trial

TRIES: Final = 3
"""A cell whose laws break while a process of the gateway gets no CPU time is tried again, so often in all."""


class CellVerdict(msgspec.Struct):
    """How one cell ended."""

    cell: Cell
    broken: list[str]
    """Empty: all laws hold."""
    evidence: Evidence
    stood_still: list[str]
    """Processes that got no CPU time for a while in each try: where laws are broken as well, nothing is decided."""

    @property
    def decided(self) -> bool:
        """Whether the laws hold, or are broken on a machine that had time."""
        return not (self.broken and self.stood_still)


async def run(
    ground: TrialGround, cells: Sequence[Cell], at_once: int, tell: Callable[[CellVerdict], None] = lambda _: None
) -> list[CellVerdict]:
    """Try all these cells, so many at once, and `tell` of each as it ends."""
    verdicts: list[CellVerdict] = []
    turns = asyncio.Semaphore(at_once)

    async def one_after_the_other(mine: Sequence[Cell]) -> None:
        for cell in mine:
            async with turns:
                verdict = await _judged(ground, cell)
            verdicts.append(verdict)
            tell(verdict)

    by_place = {cell.place: [one for one in cells if one.place == cell.place] for cell in cells}
    async with asyncio.TaskGroup() as group:
        for mine in by_place.values():
            group.create_task(one_after_the_other(mine))
    return verdicts


async def _judged(ground: TrialGround, cell: Cell) -> CellVerdict:
    verdict = None
    for _ in range(TRIES):
        evidence = await trial(ground, cell)
        last = max(one.sent + one.took for one in evidence.asked)
        still = ground.stood_still(evidence.asked[0].sent, last)
        verdict = CellVerdict(cell, broken(evidence), evidence, still)
        if evidence.back_s is None and not await settled(ground, cell):
            verdict.broken.append(f"L2: not even {SETTLED_S:g} s later")
        if verdict.decided:
            break
    assert verdict is not None  # noqa: S101 - TRIES is positive
    return verdict
