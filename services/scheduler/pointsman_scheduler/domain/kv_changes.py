"""Applies the reports of an engine about its caches to the prefix index."""

import numpy as np

from pointsman_contracts.kv import IN_TIER
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.prefix_index import PrefixIndex


def apply_told(index: PrefixIndex, life: int, told: Told, now: float) -> None:
    """Apply them in order. An unknown operation is passed over: a later version's agent has it."""
    if told.everything is not None:
        index.retold(life, _blocks(told.everything), now)
    for change in told.changes:
        op, _, tier = change.op.partition(IN_TIER)
        if tier:
            _apply_below(index, life, (op, tier), _blocks(change.blocks), now)
        elif op == "stored":
            index.stored(life, _blocks(change.blocks), now)
        elif op == "removed":
            index.removed(life, _blocks(change.blocks), now)
        elif op == "cleared":
            index.retold(life, _blocks(b""), now)


def _apply_below(index: PrefixIndex, life: int, change: tuple[str, str], blocks: Blocks, now: float) -> None:
    op, tier = change
    if op == "stored":
        index.store_below(life, tier, blocks, now)
    elif op == "removed":
        index.remove_below(life, tier, blocks, now)
    elif op == "cleared":
        index.clear_below(life, tier)


def _blocks(packed: bytes) -> Blocks:
    return np.frombuffer(packed, dtype="<u8")
