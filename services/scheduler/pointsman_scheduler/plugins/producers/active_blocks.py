"""`active-blocks`: prompt blocks of the requests that each worker serves at this moment, each counted once."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pointsman_core.plugins import Key
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Producer, ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold, HoldKey

POTENTIAL_BLOCKS: Final[Key[Floats]] = Key("potential-active-blocks", np.ndarray)
"""Blocks that each worker of the fleet would have in use with this request: those of its open requests, and this
request's further ones."""


class ActiveBlocks(Producer, ResponseObserver):
    """Counts references to each block by worker, as NVIDIA Dynamo 1.6 does. Blocks are chained, so those of a prompt
    that open requests share are its first ones."""

    type_name = "active-blocks"
    produces = (POTENTIAL_BLOCKS,)

    def setup(self) -> None:
        self._used: dict[str, dict[int, int]] = {}
        self._held: dict[HoldKey, list[int]] = {}
        self._workers: dict[HoldKey, str] = {}
        """Where the blocks of each reservation are counted."""

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        blocks: list[int] = request.blocks.tolist()
        used = [self._used.get(name) for name in everyone.fleet.names]
        potential = [
            len(blocks) if references is None else len(references) + len(blocks) - _shared(references, blocks)
            for references in used
        ]
        request.put(POTENTIAL_BLOCKS, np.array(potential, dtype=np.float64))

    def chosen(self, hold: Hold, now: float) -> None:
        self._drop(hold.key, hold.worker.name)
        blocks: list[int] = np.frombuffer(hold.change.blocks, dtype="<u8").tolist()
        self._held[hold.key] = blocks
        self._workers[hold.key] = hold.worker.name
        references = self._used.setdefault(hold.worker.name, {})
        for block in blocks:
            references[block] = references.get(block, 0) + 1

    def gone(self, hold: Hold, now: float) -> None:
        self._drop(hold.key, hold.worker.name)

    def _drop(self, key: HoldKey, name: str) -> None:
        """Drop the blocks of a reservation where they were counted: it may have moved on while another policy was in
        force. `name`: of its worker, for one from a snapshot that doesn't say where."""
        blocks = self._held.pop(key, None)
        if blocks is None:
            return
        name = self._workers.pop(key, name)
        references = self._used.get(name, {})
        for block in blocks:
            left = references.get(block, 0) - 1
            if left > 0:
                references[block] = left
            else:
                references.pop(block, None)
        if not references:
            self._used.pop(name, None)


def _shared(references: Mapping[int, int], blocks: list[int]) -> int:
    """Number of first blocks in use: a binary search, as a block is only in use with all before it."""
    if not blocks or blocks[0] not in references:
        return 0
    low, high = 1, len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle - 1] in references:
            low = middle
        else:
            high = middle - 1
    return low
