"""Makes the messages about a KV cache: numbered changes, and answers to schedulers that missed some."""

from array import array
from collections import deque
from collections.abc import Callable
from sys import byteorder
from typing import Final, NamedTuple

from pointsman_contracts.kv import IN_TIER, OWN_TIERS, KvChange, KvTier, WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.message import Blob
from pointsman_worker_agent.domain.engine_block import Delta

KEPT: Final = 1024
"""Messages that can be asked for again."""
MOST_BLOCKS: Final = 4096
"""Blocks in one message: 44 KB of JSON."""
PART_BLOCKS: Final = 262_144
"""Blocks in one part of a snapshot: 2.8 MB of JSON."""
SNAPSHOT_KEPT_S: Final = 10.0


class _Snapshot(NamedTuple):
    sequence: int
    blocks: "array[int]"
    tiers: tuple[KvTier, ...]
    used_at: float


class KvFeed:
    """One engine's changes on their way to the bus."""

    def __init__(
        self,
        *,
        pool: str,
        worker: str,
        agent: str,
        block_tokens: int,
        held: Callable[[], list[int]],
        lower: Callable[[], dict[str, list[int]]] = dict[str, list[int]],
        store: str = "",
    ) -> None:
        """`held` names every block on the engine's device, `lower` those below it, by tier. `store`: the tier of the
        shared store that it reaches; empty for none."""
        self.sequence = 0
        """Number of the last message with changes."""
        self._pool: Final = pool
        self._worker: Final = worker
        self._agent: Final = agent
        self._block_tokens: Final = block_tokens
        self._held: Final = held
        self._lower: Final = lower
        self._store: Final = store
        self._boot_id = ""
        self._cleared = False
        """Whether the next message says first that nothing is left."""
        self._waiting: dict[int, bool] = {}
        """Block → whether it came or left, by the last change since the last message. Those on the device."""
        self._waiting_below: dict[str, dict[int, bool]] = {}
        """Those below it, by tier."""
        self._kept: deque[WorkerKvEvents] = deque(maxlen=KEPT)
        self._snapshots: dict[tuple[int, bool], _Snapshot] = {}
        """By sequence, and whether it has the tiers below the device."""

    def begin_life(self, boot_id: str) -> None:
        """This is the engine's life from here on. Its first changes may have been heard before its name."""
        if boot_id != self._boot_id:
            self._boot_id = boot_id
            self._cleared = True
            self._waiting = dict.fromkeys(self._held(), True)
            self._waiting_below = {tier: dict.fromkeys(held, True) for tier, held in self._lower().items()}
            if self._store:
                self._waiting_below.setdefault(self._store, {})  # the engine reaches it, even with nothing in it
            self._kept.clear()
            self._snapshots.clear()

    @property
    def waiting_blocks(self) -> int:
        """Blocks whose change waits to be published."""
        return len(self._waiting) + sum(map(len, self._waiting_below.values()))

    def add_changes(self, delta: Delta) -> None:
        """Add changes. Of a block that is stored and removed before the next message, the last one counts."""
        if delta.tier:
            if not (delta.stored or delta.removed):
                return
            waiting = self._waiting_below.setdefault(delta.tier, {})
        else:
            waiting = self._waiting
        for block in delta.stored:  # in the order of the last change, so that runs of a prompt stay together
            waiting.pop(block, None)
        waiting.update(dict.fromkeys(delta.stored, True))
        for block in delta.removed:
            waiting.pop(block, None)
        waiting.update(dict.fromkeys(delta.removed, False))

    def take_due_messages(self, now_ms: int) -> list[WorkerKvEvents]:
        """The messages that are due: blocks that left, then those that came."""
        waiting, self._waiting = self._waiting, {}
        below, self._waiting_below = self._waiting_below, {}
        cleared, self._cleared = self._cleared, False
        changes = [KvChange(op="cleared")] if cleared else []
        parts = [*_parts("", waiting), *(part for tier in below for part in _parts(IN_TIER + tier, below[tier]))]
        messages: list[WorkerKvEvents] = []
        room = MOST_BLOCKS
        for op, blocks in parts:
            for start in range(0, len(blocks) or 1, MOST_BLOCKS):
                part = blocks[start : start + MOST_BLOCKS]
                if changes and len(part) > room:
                    messages.append(self._message(tuple(changes), now_ms))
                    changes, room = [], MOST_BLOCKS
                changes.append(KvChange(op=op, blocks=_packed(part)))
                room -= len(part)
        if changes:
            messages.append(self._message(tuple(changes), now_ms))
        return messages

    def make_heartbeat(self, now_ms: int) -> WorkerKvEvents:
        """A message with the number of the last one."""
        return self._event(self.sequence, (), now_ms)

    def answer_query(self, query: WorkerKvQuery, now: float) -> WorkerKvState:
        """The changes that the asker missed: from the kept ones if they suffice, else one part of a snapshot. `now` is
        monotonic."""
        if query.as_of is None and query.agent == self._agent and 0 < query.since <= self.sequence:
            first = self._kept[0].sequence if self._kept else self.sequence + 1
            if query.since >= first - 1:
                missed = [message for message in self._kept if message.sequence > query.since]
                changes = tuple(change for message in missed for change in message.changes)
                if sum(len(change.blocks) for change in changes) <= PART_BLOCKS * 8:
                    return WorkerKvState(
                        boot_id=self._boot_id, agent=self._agent, sequence=self.sequence, changes=changes
                    )
        return self._part(query, now)

    def _part(self, query: WorkerKvQuery, now: float) -> WorkerKvState:
        self._snapshots = {
            at: snapshot for at, snapshot in self._snapshots.items() if now - snapshot.used_at < SNAPSHOT_KEPT_S
        }
        snapshot = self._snapshots.get((query.as_of, query.tiers)) if query.as_of is not None else None
        offset = query.offset
        if snapshot is None:
            # The snapshot already contains the changes that wait to be published; publishing them again changes
            # nothing.
            snapshot, offset = self._take_snapshot(query.tiers, now), 0
        blocks = snapshot.blocks[offset : offset + PART_BLOCKS]
        if offset + len(blocks) < len(snapshot.blocks):
            self._snapshots[snapshot.sequence, query.tiers] = snapshot._replace(used_at=now)
        return WorkerKvState(
            boot_id=self._boot_id,
            agent=self._agent,
            sequence=snapshot.sequence,
            snapshot=True,
            held=_packed(blocks),
            offset=offset,
            total=len(snapshot.blocks),
            tiers=snapshot.tiers,
        )

    def _take_snapshot(self, tiers: bool, now: float) -> _Snapshot:
        blocks = array("Q", self._held())
        if not tiers:
            return _Snapshot(self.sequence, blocks, (), now)
        held = self._lower()
        lower = {tier: held.pop(tier, []) for tier in (*OWN_TIERS, *((self._store,) if self._store else ()))} | held
        for each in lower.values():
            blocks.extend(each)
        counted = tuple([KvTier(tier=tier, blocks=len(each)) for tier, each in lower.items()])
        return _Snapshot(self.sequence, blocks, counted, now)

    def _message(self, changes: tuple[KvChange, ...], now_ms: int) -> WorkerKvEvents:
        self.sequence += 1
        message = self._event(self.sequence, changes, now_ms)
        self._kept.append(message)
        return message

    def _event(self, sequence: int, changes: tuple[KvChange, ...], now_ms: int) -> WorkerKvEvents:
        return WorkerKvEvents(
            worker=self._worker,
            pool=self._pool,
            boot_id=self._boot_id,
            agent=self._agent,
            sequence=sequence,
            at_ms=now_ms,
            block_tokens=self._block_tokens,
            changes=changes,
        )


def _parts(suffix: str, waiting: dict[int, bool]) -> list[tuple[str, list[int]]]:
    """The changes of one tier: removals, then additions. A tier below the device without any gets empty additions,
    which say that it can be reached."""
    removed = [block for block, stored in waiting.items() if not stored]
    stored = [block for block, stored in waiting.items() if stored]
    parts = [("removed" + suffix, removed)] if removed else []
    return [*parts, ("stored" + suffix, stored)] if stored or (suffix and not removed) else parts


def _packed(blocks: "list[int] | array[int]") -> Blob:
    words = array("Q", blocks)
    if byteorder == "big":
        words.byteswap()
    return Blob(words.tobytes())
