"""Which worker holds which block, as a bit set per block."""

from collections.abc import Sequence


class BaselinePrefixIndex:
    """An exact index, provided that it receives every change."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._holders: dict[int, int] = {}

    def store_blocks(self, worker: int, blocks: Sequence[int]) -> None:
        holders, bit = self._holders, 1 << worker
        for block in blocks:
            holders[block] = holders.get(block, 0) | bit

    def remove_blocks(self, worker: int, blocks: Sequence[int]) -> None:
        holders, others = self._holders, ~(1 << worker)
        for block in blocks:
            left = holders.get(block, 0) & others
            if left:
                holders[block] = left
            else:
                holders.pop(block, None)

    def drop_worker(self, worker: int) -> None:
        """The worker holds nothing any more."""
        self.remove_blocks(worker, [block for block, holders in self._holders.items() if holders >> worker & 1])

    def match_blocks(self, blocks: Sequence[int]) -> list[int]:
        """Leading blocks that each worker holds; matching stops at the first miss."""
        depths = [0] * self._workers
        holders = self._holders
        alive = (1 << self._workers) - 1
        depth = 0
        for block in blocks:
            still = alive & holders.get(block, 0)
            if still != alive:
                self._settle(depths, alive & ~still, depth)
                if not still:
                    return depths
                alive = still
            depth += 1
        self._settle(depths, alive, depth)
        return depths

    @staticmethod
    def _settle(depths: list[int], workers: int, depth: int) -> None:
        while workers:
            lowest = workers & -workers
            depths[lowest.bit_length() - 1] = depth
            workers ^= lowest
