"""Batches that classes of vLLM 0.32.0 encoded: `KVEventBatch`, and `OffloadingEventsTracker` for offloaded blocks."""

import base64
import json
from pathlib import Path
from typing import Final

import pytest

from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_wire import Cleared, Decoder

RECORDED: Final[dict[str, str]] = json.loads((Path(__file__).parent / "vllm_0_32_0_kv_tiers.json").read_text())
SHARED: Final = "store:files"


def tell(blocks: EngineBlocks, decoder: Decoder, *names: str) -> dict[str, int]:
    """Take these batches in. Returns how many blocks each tier has, of those that have any."""
    for name in names:
        for event in decoder.decode(base64.b64decode(RECORDED[name])):
            blocks.apply_event(0, event, "llama")
            if isinstance(event, Cleared):
                blocks.clear_lower(0)
    counts = {"device": len(blocks.held())} | blocks.count_lower()
    return {tier: count for tier, count in counts.items() if count}


@pytest.mark.parametrize(
    ("batch", "tier"),
    [
        ("offloaded to memory", "host"),
        ("offloaded to a disk", "disk"),
        ("offloaded to a shared file system", SHARED),
    ],
)
def test_offloaded_blocks_stay_in_their_tier_when_the_device_drops_them(batch: str, tier: str) -> None:
    blocks, decoder = EngineBlocks(4), Decoder("files")
    assert tell(blocks, decoder, "device stored", batch) == {"device": 2, tier: 2}
    assert tell(blocks, decoder, "device removed") == {tier: 2}
    assert blocks.unknown == 0


def test_an_eviction_from_memory_leaves_the_other_tiers() -> None:
    blocks, decoder = EngineBlocks(4), Decoder("files")
    everywhere = ("device stored", "offloaded to memory", "offloaded to a disk", "offloaded to a shared file system")
    tell(blocks, decoder, *everywhere, "evicted from memory")
    assert tell(blocks, decoder) == {"device": 2, "host": 1, "disk": 2, SHARED: 2}
    assert tell(blocks, decoder, "cleared") == {SHARED: 2}
