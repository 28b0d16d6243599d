"""Follows the KV events of one worker's agent, and detects missing ones."""

from typing import Final, NamedTuple

from pointsman_contracts.kv import IN_TIER, KvChange, KvTier, WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.message import Blob

ASK_AGAIN_S: Final = 1.0
KEPT: Final = 2048
"""Messages that wait for the answer to an earlier gap; beyond this many, the oldest are requested as well."""


class Told(NamedTuple):
    """Changes to apply, in this order."""

    everything: bytes | None = None
    """Blocks that replace all earlier reports of the device; None to keep them."""
    changes: tuple[KvChange, ...] = ()


NOTHING: Final = Told()


class KvFollower:
    """Follows one worker. Messages are numbered within each life of the agent: a new agent, or a new life of the
    engine, starts over."""

    def __init__(self) -> None:
        self.gaps = 0
        """Number of gaps."""
        self._life: tuple[str, str] = ("", "")
        self._known: int | None = None
        """Sequence up to which everything is applied; None before the first snapshot."""
        self._heard = 0
        """The highest sequence that the agent is known to have reached."""
        self._waiting: dict[int, tuple[KvChange, ...]] = {}
        self._parts = b""
        self._as_of: int | None = None
        self._asked_at = float("-inf")

    @property
    def is_behind(self) -> bool:
        """Whether something is missing."""
        return self._life != ("", "") and (self._known is None or self._known < self._heard)

    def hear(self, event: WorkerKvEvents) -> Told:
        """Take a message from the agent."""
        life = (event.boot_id, event.agent)
        if life != self._life:
            self._begin(life)
            if event.sequence == 1 and event.changes:
                self._known = 0
        was_behind = self.is_behind
        self._heard = max(self._heard, event.sequence)
        if event.changes and (self._known is None or event.sequence > self._known):
            self._waiting[event.sequence] = event.changes
            if len(self._waiting) > KEPT:
                del self._waiting[min(self._waiting)]
        told = Told(changes=self._in_order())
        if self.is_behind and not was_behind:
            self.gaps += 1
        return told

    def question(self, now: float) -> WorkerKvQuery | None:
        """The question for the agent; None when nothing is missing, or the last question is recent."""
        if not self.is_behind or now - self._asked_at < ASK_AGAIN_S:
            return None
        self._asked_at = now
        since, offset = self._known or 0, len(self._parts) // 8
        return WorkerKvQuery(since=since, agent=self._life[1], offset=offset, as_of=self._as_of, tiers=True)

    def receive_answer(self, state: WorkerKvState) -> Told:
        """Take the agent's answer."""
        if (state.boot_id, state.agent) != self._life:
            return NOTHING
        self._asked_at = float("-inf")
        if not state.snapshot:
            if self._known is None or state.sequence < self._known:
                return NOTHING
            return self._catch_up(state.sequence, Told(changes=state.changes))
        if state.offset == 0:
            self._parts = b""
        elif state.offset != len(self._parts) // 8 or state.sequence != self._as_of:
            self._parts, self._as_of = b"", None  # from another moment: start over
            return NOTHING
        self._parts += state.held
        self._as_of = state.sequence
        if len(self._parts) // 8 < state.total:
            return NOTHING
        everything, self._parts, self._as_of = self._parts, b"", None
        return self._catch_up(state.sequence, _split_tiers(everything, state.tiers))

    def _begin(self, life: tuple[str, str]) -> None:
        self._life = life
        self._known = None
        self._heard = 0
        self._waiting.clear()
        self._parts, self._as_of = b"", None
        self._asked_at = float("-inf")

    def _catch_up(self, sequence: int, told: Told) -> Told:
        self._known = sequence
        self._heard = max(self._heard, sequence)
        for number in [number for number in self._waiting if number <= sequence]:
            del self._waiting[number]
        return told._replace(changes=(*told.changes, *self._in_order()))

    def _in_order(self) -> tuple[KvChange, ...]:
        """Changes that follow what is known without a gap."""
        changes: tuple[KvChange, ...] = ()
        while self._known is not None and (following := self._waiting.pop(self._known + 1, None)) is not None:
            changes += following
            self._known += 1
        return changes


def _split_tiers(blocks: bytes, tiers: tuple[KvTier, ...]) -> Told:
    """The blocks of a snapshot: those on the device, and changes that set the tiers below it."""
    start = max(0, len(blocks) - 8 * sum(max(0, tier.blocks) for tier in tiers))
    everything, changes = blocks[:start], list[KvChange]()
    for tier in tiers:
        end = start + 8 * max(0, tier.blocks)
        changes.append(KvChange(op=f"cleared{IN_TIER}{tier.tier}"))
        changes.append(KvChange(op=f"stored{IN_TIER}{tier.tier}", blocks=Blob(blocks[start:end])))
        start = end
    return Told(everything, tuple(changes))
