"""The engine tells of its cache as vLLM does."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from pointsman_simulator.kv_events import BlockBook
from pointsman_simulator.kv_publisher import KvPublisher
from pointsman_simulator.tokenizer_vocabulary import TokenizerVocabulary
from pointsman_simulator.tokens import name_blocks
from pointsman_testing.tiny_tokenizer import CHATML, write_tokenizer

END = (-1).to_bytes(8, "big", signed=True)
TOKENS = np.arange(100, 112, dtype="<u4")


def test_blocks_that_follow_each_other_are_published_at_once_with_their_tokens() -> None:
    book = BlockBook(4)
    names = name_blocks("", TOKENS, 4)
    book.open_sequence(names, TOKENS, None, None)
    assert book.build_events(names, []) == [
        ["BlockStored", names, None, list(range(100, 112)), 4, None, "GPU", None, [None, None, None]]
    ]
    other = np.concatenate([TOKENS[:4], TOKENS[:4]])
    branch = name_blocks("", other, 4)
    book.open_sequence(branch, other, None, None)
    assert book.build_events(branch[1:], names[2:]) == [
        ["BlockRemoved", names[2:], "GPU"],
        ["BlockStored", branch[1:], names[0], [100, 101, 102, 103], 4, None, "GPU", None, [None]],
    ]


def test_adapter_and_salt_are_published_as_keys() -> None:
    book = BlockBook(4)
    names = name_blocks("sql\0pepper", TOKENS, 4)
    book.open_sequence(names, TOKENS, "sql", "pepper")
    ((_, _, _, _, _, lora_id, _, lora, keys),) = book.build_events(names, [])
    assert (lora_id, lora, keys) == (1, "sql", [["sql", "pepper"], ["sql"], ["sql"]])


def test_a_block_is_remembered_while_it_is_used_or_cached() -> None:
    book = BlockBook(4)
    names = name_blocks("", TOKENS, 4)
    book.open_sequence(names, TOKENS, None, None)
    book.open_sequence(names, TOKENS, None, None)
    book.close_sequence(names)
    assert len(book.build_events(names, [])) == 1  # heard of after its sequence was aborted
    book.close_sequence(names)
    book.build_events([], [])
    assert len(book) == 3
    assert book.build_events([], [*names, 12345]) == [["BlockRemoved", names, "GPU"]]
    assert len(book) == 0


def test_the_words_of_an_answer_are_its_tokens_in_the_next_prompt(tmp_path: Path) -> None:
    vocabulary = TokenizerVocabulary(write_tokenizer(tmp_path, CHATML))
    words, tokens = vocabulary.make_answer(7, 12)
    assert (vocabulary.tokenize_text("".join(words), {"add_special_tokens": False}.get) == tokens).all()
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    answered: dict[str, Any] = {"messages": [*asked["messages"], {"role": "assistant", "content": "".join(words)}]}
    seen = np.concatenate([vocabulary.tokenize_chat(asked.get), tokens])
    assert (vocabulary.tokenize_chat(answered.get)[: len(seen)] == seen).all()


async def test_batches_are_numbered_and_sent_again_on_request() -> None:
    publisher = KvPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    publisher.start()
    for number in range(3):
        publisher.publish_batch([["BlockRemoved", [number], "GPU"]])
        publisher.publish_batch([])
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    assert publisher.replay is not None
    socket.connect(publisher.replay)
    await socket.send_multipart([b"", (1).to_bytes(8, "big")])  # pyright: ignore[reportUnknownMemberType]
    heard = [await socket.recv_multipart() for _ in range(3)]
    assert [frames[:3] for frames in heard] == [
        [b"", b"", number] for number in ((1).to_bytes(8, "big"), (2).to_bytes(8, "big"), END)
    ]
    assert [msgspec.msgpack.decode(frames[3])[1] for frames in heard[:2]] == [
        [["BlockRemoved", [1], "GPU"]],
        [["BlockRemoved", [2], "GPU"]],
    ]
    context.destroy(linger=0)
    publisher.close()


def test_host_memory_is_published_as_names_and_remembered() -> None:
    book = BlockBook(4)
    names = name_blocks("", TOKENS, 4)
    book.open_sequence(names, TOKENS, None, None)
    book.build_events(names, [])
    book.close_sequence(names)
    assert book.host_events(names, []) == [["BlockStored", names, None, [], 0, None, "CPU", None, None]]
    assert book.build_events([], names) == [["BlockRemoved", names, "GPU"]]
    assert len(book) == 3
    assert book.host_events([], names[1:]) == [["BlockRemoved", names[1:], "CPU"]]
    book.build_events([], [])
    assert len(book) == 1
