"""Batches of KV events as engines of several versions send them."""

from dataclasses import replace

import msgspec
import pytest

from pointsman_worker_agent.domain.kv_wire import BlocksRemoved, BlocksStored, Cleared, Decoder, MalformedBatch


def encoded(*events: object, as_map: bool = False) -> bytes:
    batch = {"ts": 1.5, "events": list(events), "data_parallel_rank": 0} if as_map else [1.5, list(events), 0]
    return msgspec.msgpack.encode(batch)


STORED = ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", "sql", [["sql"], None], 0, "full_attention"]
STORED_MAP = {
    "type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": 10, "token_ids": [1, 2, 3, 4],
    "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": "sql", "extra_keys": [["sql"], None],
    "group_idx": 0, "kv_cache_spec_kind": "full_attention", "something_new": 1,
}  # fmt: skip
EXPECTED = BlocksStored([11, 12], 10, [1, 2, 3, 4], 2, "sql", [["sql"], None], 0)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (encoded(STORED), [EXPECTED]),
        (encoded(STORED_MAP, as_map=True), [EXPECTED]),
        (encoded([*STORED, None, "newer"]), [EXPECTED]),
        # The first releases of vLLM and SGLang: no medium, no adapter's name.
        (
            encoded(["BlockStored", [b"\x01" * 32], None, [7, 8], 2, None]),
            [BlocksStored([b"\x01" * 32], None, [7, 8], 2)],
        ),
        (encoded(["BlockRemoved", [11]]), [BlocksRemoved([11])]),
        (encoded(["BlockRemoved", [11], "GPU", 0]), [BlocksRemoved([11])]),
        (encoded(["AllBlocksCleared"]), [Cleared()]),
        (encoded({"type": "AllBlocksCleared"}, as_map=True), [Cleared()]),
        (msgspec.msgpack.encode([1.5, [["BlockRemoved", [-3]]]]), [BlocksRemoved([-3])]),
        (encoded(["SomethingNew", 1, 2]), []),
        (encoded(), []),
    ],
)
def test_every_published_form_reads_alike(payload: bytes, expected: list[object]) -> None:
    assert Decoder().decode(payload) == expected


PLACED = BlocksStored([11, 12], 10, [1, 2, 3, 4], 2)


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        (None, None, ""), ("GPU", None, ""), ("gpu", "LOCAL", ""),
        ("CPU", None, "host"), ("cpu", None, "host"), ("CPU_PINNED", None, "host"), ("CPU_TIER1", None, "host"),
        ("STORAGE", None, "disk"), ("STORAGE", "LOCAL", "disk"), ("DISK", None, "disk"),
        ("STORAGE", "REMOTE", "store:pool-a"), ("EXTERNAL", None, "store:pool-a"), ("NVMEOF", None, "store:pool-a"),
    ],
)  # fmt: skip
def test_each_medium_is_the_tier_that_it_means(medium: str | None, locality: str | None, tier: str) -> None:
    decoder = Decoder("pool-a", ["nvmeof"])
    row = [*STORED[:6], medium, None, None, 0, "full_attention", None, locality]
    assert decoder.decode(encoded(row)) == [replace(PLACED, tier=tier)]
    assert decoder.decode(encoded(["BlockRemoved", [11], medium, 0, locality])) == [BlocksRemoved([11], 0, tier)]
    as_map = {"type": "BlockRemoved", "block_hashes": [11], "medium": medium, "locality": locality}
    assert decoder.decode(encoded(as_map, as_map=True)) == [BlocksRemoved([11], 0, tier)]


def test_a_store_without_a_name_is_its_engines_own() -> None:
    assert Decoder().decode(encoded(["BlockRemoved", [11], "EXTERNAL"])) == [BlocksRemoved([11], 0, "store")]


def test_a_medium_that_no_one_knows_is_counted_and_neither_the_device_nor_another_tier() -> None:
    decoder = Decoder()
    assert decoder.decode(encoded([*STORED[:6], "HOLOGRAM"], ["BlockRemoved", [11], "HOLOGRAM"])) == []
    assert decoder.unknown_media == 2


def test_vllm_names_offloaded_blocks_without_their_tokens() -> None:
    placeholder = {
        "type": "BlockStored", "block_hashes": [b"h"], "parent_block_hash": None, "token_ids": [], "block_size": 0,
        "lora_id": None, "medium": "CPU", "lora_name": None, "group_idx": 0,
    }  # fmt: skip
    assert Decoder().decode(encoded(placeholder, as_map=True)) == [BlocksStored([b"h"], None, [], 0, tier="host")]


def test_groups_whose_blocks_say_nothing_about_the_prefix_are_passed_over_when_they_leave_as_well() -> None:
    decoder = Decoder()
    assert decoder.decode(encoded([*STORED[:9], 3, "sliding_window"])) == []
    assert decoder.decode(encoded(["BlockRemoved", [11], "GPU", 3])) == []
    assert decoder.decode(encoded(["BlockRemoved", [11], "GPU", 0])) == [BlocksRemoved([11])]


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1", b"", encoded()[:-1], msgspec.msgpack.encode("batch"), msgspec.msgpack.encode([1.0, None]),
        encoded(["BlockStored", 5, None, [1], 1]), encoded(["BlockStored", [1, 2], None, [1, 2, 3], 2]),
        encoded(["BlockStored", ["x"], None, [1], 1]), encoded(["BlockStored", [1], [2], [1], 1]),
        encoded(["BlockStored", [1], None, [1], "one"]), encoded(["BlockStored", [1], None, [1], 0]),
        encoded(["BlockRemoved"]), encoded(["BlockRemoved", [1], ["GPU"]]), encoded(["BlockRemoved", [1], 3]),
    ],
)  # fmt: skip
def test_a_payload_that_is_no_batch_is_refused_with_words_that_quote_nothing_of_it(payload: bytes) -> None:
    with pytest.raises(MalformedBatch) as refused:
        Decoder().decode(payload)
    assert "x" not in str(refused.value).split()
