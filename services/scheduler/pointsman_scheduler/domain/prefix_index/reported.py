"""The blocks that engines reported, of all engines of a pool in one table.

Reports wait until the table is read, or until `AT_ONCE` blocks do: numpy takes 2,048 blocks of 32 reports in the time
in which it takes those of some eight reports one by one.
"""

import math
from collections import Counter
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman_plugins.scheduling.arrays import Blocks, Bools, Ints
from pointsman_scheduler.domain.prefix_index.block_table import PLACES, BlockTable, Ticks, Values
from pointsman_scheduler.domain.prefix_index.memory import REPORTED_BYTES
from pointsman_scheduler.domain.prefix_index.reports import Reports

TICK_S: Final = 0.25
AT_ONCE: Final = 2048
LOGGED_MOST: Final = 3
LOG_SLACK: Final = 1024
"""An engine's reports are replaced by the blocks that it holds when they name `LOGGED_MOST` times as many, and this
many more."""
SCANNED: Final = 1024
"""Buckets that are looked through at a time for blocks to evict."""
EVICTED_SHARE: Final = 0.05
"""Share of the blocks that is evicted before the oldest are looked for again. Among them, order is by place."""
SAMPLED: Final = 4096
_STORED: Final = 1
_REMOVED: Final = 2
_USED: Final = 3


class _Waiting(NamedTuple):
    op: int
    number: int
    tick: int
    blocks: Blocks


class _Columns(NamedTuple):
    """Reports of blocks, one a row."""

    blocks: Blocks
    numbers: Values
    ops: NDArray[np.int8]
    ticks: Ticks

    def pick_rows(self, rows: Bools | Ints) -> "_Columns":
        """Some of the rows."""
        return _Columns(self.blocks[rows], self.numbers[rows], self.ops[rows], self.ticks[rows])


class _HolderMasks(dict[int, int]):
    """The mask of holders that a value of the table stands for. Few different values exist, so they are looked up."""

    def __missing__(self, value: int) -> int:
        mask = self[value] = 1 << (value - 1) if value > 0 else 0
        return mask


class ReportedBlocks:
    """Which engine reported which blocks. An engine is known by a bit of the masks, and here by the bit's number.

    A block's value in the table is the number of its only holder; or, below zero, the number of a set of holders.
    """

    def __init__(self, max_bytes: int) -> None:
        self.waiting: list[_Waiting] = []
        self.holdings = 0
        """Pairs of an engine and a block, without what waits."""
        self._waiting_blocks = 0
        self._reserved: Final = 2 ** min(22, max(8, math.ceil(math.log2(max_bytes / REPORTED_BYTES / 2))))
        self._table: BlockTable | None = None
        self._held = np.zeros(64, dtype=np.int64)
        """By number of an engine: how many blocks it holds."""
        self._reports: dict[int, Reports] = {}
        self._crowded: dict[int, None] = {}
        """Engines whose reports are to be replaced by what they hold."""
        self._masks: Final = _HolderMasks()
        self._set_of: dict[int, int] = {}
        """Mask of several holders → its value."""
        self._sharing: Counter[int] = Counter()
        """Value of a set → blocks that have it."""
        self._free_sets: list[int] = []
        self._evict_at = 0
        """The bucket that is looked through next for blocks to evict."""
        self._evict_before: int | None = None
        """Blocks that weren't used after this tick are evicted."""

    @property
    def size(self) -> int:
        """Blocks with a holder, without what waits."""
        return 0 if self._table is None else self._table.size

    @property
    def is_due(self) -> bool:
        """Whether enough blocks wait."""
        return self._waiting_blocks >= AT_ONCE

    def follow_engine(self, bit: int, reports: Reports) -> None:
        """Keep what the engine with this bit reports."""
        self._reports[bit.bit_length()] = reports

    def forget_engine(self, bit: int) -> None:
        """The engine is gone, and so are its blocks."""
        self._crowded.pop(bit.bit_length(), None)
        self._reports.pop(bit.bit_length(), None)

    def count_held(self, bit: int) -> int:
        """How many blocks an engine holds."""
        number = bit.bit_length()
        return self._held.item(number) if number < len(self._held) else 0

    def store_blocks(self, bit: int, blocks: Blocks, at: float) -> None:
        """An engine has these blocks."""
        number = bit.bit_length()
        self._reports[number].add_report(_packed(blocks), at, stored=True)
        self._wait(_STORED, number, at, blocks)

    def remove_blocks(self, bit: int, blocks: Blocks, at: float) -> None:
        """An engine dropped these blocks."""
        number = bit.bit_length()
        self._reports[number].add_report(_packed(blocks), at, stored=False)
        self._wait(_REMOVED, number, at, blocks)

    def release_blocks(self, bit: int, reports: Reports, most: int) -> int:
        """Take the blocks of up to so many hashes of a former life's reports out. Returns how many hashes."""
        before = reports.logged
        for blob in reports.take_latest(most):
            self._wait(_REMOVED, bit.bit_length(), 0.0, np.frombuffer(blob, dtype="<u8"))
        return before - reports.logged

    def use_blocks(self, bit: int, blocks: Blocks, at: float) -> None:
        """A request with these blocks was answered."""
        self._wait(_USED, bit.bit_length(), at, blocks)

    def list_blocks(self, bit: int) -> tuple[Blocks, NDArray[np.float64]]:
        """The blocks of an engine, and when each was last used, by any engine. Nothing may wait."""
        number = bit.bit_length()
        blocks = self._reports[number].list_stored()
        if self._table is None or not len(blocks):
            return blocks[:0], np.zeros(0)
        found = self._table.find_blocks(blocks)
        held = self._has(self._table.values.take(found.places), bit)
        return blocks[held], self._table.ticks.take(found.places[held]).astype(np.float64) * TICK_S

    def load_blocks(self, bit: int, blocks: Blocks, ats: NDArray[np.float64]) -> None:
        """An engine has these blocks, each once, that were last used at these times. Nothing may wait."""
        order = np.argsort(ats, kind="stable")
        blocks, ats = blocks[order], ats[order]
        starts = [0, *(np.flatnonzero(np.diff(ats)) + 1).tolist(), len(ats)] if len(ats) else []
        for start, end in pairwise(starts):
            self.store_blocks(bit, blocks[start:end], ats.item(start))

    def holder_masks(self, blocks: Blocks) -> list[int]:
        """The mask of the holders of each block. Nothing may wait."""
        if self._table is None:
            return [0] * len(blocks)
        values: list[int] = self._table.values.take(self._table.find_blocks(blocks).places).tolist()
        return [*map(self._masks.__getitem__, values)]

    def settle_reports(self) -> None:
        """Take in what waits."""
        waiting, self.waiting, self._waiting_blocks = self.waiting, [], 0
        if not waiting:
            return
        if self._table is None:
            self._table = BlockTable(self._reserved)
        ops, numbers, ticks, parts = zip(*waiting, strict=True)
        lengths = [len(part) for part in parts]
        columns = _Columns(
            np.concatenate(parts),
            np.repeat(np.array(numbers, dtype=np.int32), lengths),
            np.repeat(np.array(ops, dtype=np.int8), lengths),
            np.repeat(np.array(ticks, dtype=np.uint32), lengths),
        )
        if not columns.blocks.all():  # hash 0 can't be kept
            columns = columns.pick_rows(columns.blocks != 0)
        most = max(numbers)
        if most >= len(self._held):
            self._held = np.concatenate((self._held, np.zeros(most, dtype=np.int64)))
        sorted_blocks = np.sort(columns.blocks)
        if (sorted_blocks[1:] == sorted_blocks[:-1]).any():
            for turn in _turns(columns.blocks):
                self._apply(self._table, columns.pick_rows(turn))
        else:
            self._apply(self._table, columns)
        for number in set(numbers):
            reports = self._reports.get(number)
            if reports is not None and reports.logged > LOGGED_MOST * self._held.item(number) + LOG_SLACK:
                self._crowded[number] = None
        if self._crowded:
            self._compact(waiting[-1].tick * TICK_S)

    def oldest_at(self) -> float | None:
        """When the blocks that are evicted next were last used, about; None without blocks."""
        if not self.size:
            return None
        if self._evict_before is None:
            self._evict_before = self._oldest_tick()
        return self._evict_before * TICK_S

    def evict_oldest(self, most: int) -> int:
        """Drop up to so many of the least recently used blocks, of every engine that holds them. Returns how many
        holdings."""
        table = self._table
        if table is None or self.oldest_at() is None:
            return 0
        before = self.holdings
        while self.holdings == before and self.size:
            places = table.used_places(self._evict_at, SCANNED)
            old = places[table.ticks.take(places) <= (self._evict_before or 0)]
            self._evict(table, old[:most])
            if len(old) > most:
                break
            self._evict_at += SCANNED
            if self._evict_at >= table.buckets:
                self._evict_at, self._evict_before = 0, self._oldest_tick()
        return before - self.holdings

    def _wait(self, op: int, number: int, at: float, blocks: Blocks) -> None:
        if len(blocks):
            self.waiting.append(_Waiting(op, number, max(0, int(at / TICK_S)), blocks))
            self._waiting_blocks += len(blocks)

    def _apply(self, table: BlockTable, columns: _Columns) -> None:
        """Reports that name each block once."""
        blocks, numbers, ops, ticks = columns
        found = table.find_blocks(blocks)
        places = found.places
        values = table.values.take(places)
        stored = ops == _STORED
        removed = ops == _REMOVED
        there = ~found.missing
        changes = np.zeros(len(self._held), dtype=np.int64)
        own = values == numbers
        several = there & ((stored & ~own) | (removed & (values < 0)))
        used = there & ~removed
        if used.any():
            table.ticks[places[used]] = ticks[used]
        if several.any():
            rows = np.flatnonzero(several)
            self._share(table, places[rows], columns.pick_rows(rows), values[rows], changes)
        if (gone := removed & own).any():
            table.delete_places(places[gone])
            changes -= np.bincount(numbers[gone], minlength=len(changes))
        if (new := stored & found.missing).any():  # last, since it moves places
            table.insert_blocks(blocks[new], numbers[new], ticks[new])
            changes += np.bincount(numbers[new], minlength=len(changes))
        self._held += changes
        self.holdings += int(changes.sum())

    def _share(self, table: BlockTable, places: Ints, columns: _Columns, values: Values, changes: Ints) -> None:
        """A block gets one holder more than one, or one of several leaves."""
        known: dict[tuple[int, int, int], int] = {}
        after: list[int] = []
        for change in zip(values.tolist(), columns.numbers.tolist(), columns.ops.tolist(), strict=True):
            value = known.get(change)
            if value is None:
                value = known[change] = self._after(*change)
            after.append(value)
            if value != change[0]:
                changes[change[1]] += 1 if change[2] == _STORED else -1
                self._count_sharing(change[0], value)
        table.values[places] = after
        for value in {change[0] for change in known} | set(known.values()):
            self._free_set(value)

    def _after(self, value: int, number: int, op: int) -> int:
        """The value after a report, of a block that isn't this engine's alone."""
        mask, bit = self._masks[value], 1 << (number - 1)
        mask = mask | bit if op == _STORED else mask & ~bit
        if mask.bit_count() == 1:
            return mask.bit_length()
        found = self._set_of.get(mask)
        if found is None:
            found = self._free_sets.pop() if self._free_sets else -1 - len(self._set_of)
            self._set_of[mask] = found
            self._masks[found] = mask
        return found

    def _count_sharing(self, before: int, after: int) -> None:
        if before < 0:
            self._sharing[before] -= 1
        if after < 0:
            self._sharing[after] += 1

    def _free_set(self, value: int) -> None:
        if value < 0 and not self._sharing[value] and value in self._masks:
            del self._sharing[value]
            del self._set_of[self._masks.pop(value)]
            self._free_sets.append(value)

    def _has(self, values: Values, bit: int) -> Bools:
        """Whether the engine is among the holders that these values stand for."""
        held = values == bit.bit_length()
        for value in np.unique(values[values < 0]).tolist():
            if self._masks[value] & bit:
                held |= values == value
        return held

    def _compact(self, at: float) -> None:
        """Replace the reports of one engine by what it holds."""
        number = next(iter(self._crowded))
        del self._crowded[number]
        self._reports[number].replace_all(self.list_blocks(1 << (number - 1))[0], at)

    def _oldest_tick(self) -> int:
        table = self._table
        if table is None or not table.size:
            return 0
        step = max(1, table.buckets * PLACES // (2 * SAMPLED))
        places = np.arange(0, table.buckets * PLACES, step)
        ticks = table.ticks.take(places[table.values.take(places) != 0])
        return int(np.quantile(ticks, EVICTED_SHARE)) if len(ticks) else int(table.ticks.max())

    def _evict(self, table: BlockTable, places: Ints) -> None:
        blocks, values = table.hashes_at(places), table.values.take(places)
        table.delete_places(places)
        for value in np.unique(values).tolist():
            these = blocks[values == value]
            mask = self._masks[value]
            if value < 0:
                self._sharing[value] -= len(these)
                self._free_set(value)
            while mask:
                number = (mask & -mask).bit_length()
                mask &= mask - 1
                self._held[number] -= len(these)
                self.holdings -= len(these)
                if (reports := self._reports.get(number)) is not None:
                    reports.add_report(_packed(these), 0.0, stored=False)


def _packed(blocks: Blocks) -> bytes:
    return blocks.astype("<u8", copy=False).tobytes()


def _turns(blocks: Blocks) -> list[Ints]:
    """Rows in groups that name each block once, so that those of one block follow each other in their order."""
    order = np.argsort(blocks, kind="stable")
    ordered = blocks[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rank = np.arange(len(blocks)) - np.repeat(first, np.diff(np.append(first, len(blocks))))
    return [order[rank == turn] for turn in range(int(rank.max()) + 1)]
