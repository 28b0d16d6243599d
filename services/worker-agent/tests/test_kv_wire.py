"""Batches of KV events as engines of several versions send them."""

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


def test_slower_tiers_are_not_the_cache() -> None:
    decoder = Decoder()
    assert decoder.decode(encoded([*STORED[:6], "CPU"])) == []
    assert decoder.decode(encoded(["BlockRemoved", [11], "CPU"])) == []


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
        encoded(["BlockRemoved"]),
    ],
)  # fmt: skip
def test_a_payload_that_is_no_batch_is_refused_with_words_that_quote_nothing_of_it(payload: bytes) -> None:
    with pytest.raises(MalformedBatch) as refused:
        Decoder().decode(payload)
    assert "x" not in str(refused.value).split()
