"""The blocks that engines keep below their devices, in the table of reported blocks.

Each tier of an engine is a holder of its own there, and so is each store with a name: a block that is on a device and
in host memory takes no more room than one on two devices, and a block on devices alone takes none.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from pointsman_contracts.kv import OWN_TIERS, STORE, STORE_NAME
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_scheduler.domain.prefix_index.life import Life

NAMED: Final = STORE + STORE_NAME
MOST_STORES: Final = 16
"""Stores with a name in one pool; a further one is passed over, because each has a bit in every set of holders."""
SHARED: Final = 0
"""Stands for the life of stores with a name. Lives of workers begin at 1."""


def is_tier(tier: str) -> bool:
    """Whether this version knows the tier."""
    return tier in OWN_TIERS or tier.startswith(NAMED)


class TierReach(NamedTuple):
    """One laid-out worker with tiers below its device."""

    column: int
    tiers: tuple[tuple[str, int], ...]
    """Tier and its bit, the fastest first."""
    bits: int


def list_reach(lives: Sequence[int], below: Mapping[int, Mapping[str, Life]]) -> list[TierReach]:
    """The workers of these columns that have tiers."""
    found: list[TierReach] = []
    for column, life in enumerate(lives):
        held = below.get(life)
        if held:
            tiers = tuple([(tier, held[tier].bit) for tier in sorted(held, key=_order)])
            found.append(TierReach(column, tiers, sum(bit for _, bit in tiers)))
    return found


def match_below(
    masks: Sequence[int], reach: Sequence[TierReach], block_tokens: int, matched: Floats
) -> dict[str, Floats] | None:
    """How many tokens each worker would fetch, by tier: those of the blocks that follow the ones on its device without
    a gap, each from the fastest tier that has it. `masks`: the holders of each block; `matched`: tokens on the devices.
    None where no worker would fetch any."""
    several = 0
    for mask in set(masks):
        several |= mask
    ends: list[int] = []
    runs: list[int] = []
    fetched: dict[str, Floats] = {}
    for column, tiers, bits in reach:
        if not several & bits:
            continue
        if not runs:
            runs, ends = _runs(masks)
        start = int(matched.item(column)) // block_tokens
        for run in range(bisect_right(ends, start), len(runs)):
            mask = runs[run]
            if not mask & bits:
                break
            tier = next(tier for tier, bit in tiers if mask & bit)
            if tier not in fetched:
                fetched[tier] = np.zeros(len(matched))
            fetched[tier][column] += (ends[run] - start) * block_tokens
            start = ends[run]
    return fetched or None


def _runs(masks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Neighbouring blocks mostly have the same holders: each set of them once, and where its run ends."""
    runs: list[int] = []
    ends: list[int] = []
    end = 0
    for mask, alike in groupby(masks):
        end += len([*alike])
        runs.append(mask)
        ends.append(end)
    return runs, ends


def _order(tier: str) -> tuple[int, str]:
    return (OWN_TIERS.index(tier), "") if tier in OWN_TIERS else (len(OWN_TIERS), tier)
