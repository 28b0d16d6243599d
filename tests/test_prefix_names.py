"""The preprocessor and the worker-agent name the same blocks alike, each from what it sees."""

from array import array
from pathlib import Path

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_core.config import load
from pointsman_core.settled_target import salted
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.pipeline import describe
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.tokenizer_files import TokenizerFiles
from pointsman_simulator.kv_events import BlockBook
from pointsman_simulator.tokens import name_blocks
from pointsman_testing import builders
from pointsman_testing.tiny_tokenizer import SENTENCES, write_tokenizer
from pointsman_worker_agent.domain.kv_blocks import EngineBlocks
from pointsman_worker_agent.domain.kv_wire import Decoder

CHAT = "/v1/chat/completions"
BLOCK, ENGINE_BLOCK = 8, 4


class Gateway:
    """The preprocessor's view of a request."""

    def __init__(self, folder: Path, *uses: str) -> None:
        config = load(
            {
                "pools": {"p": {"models": ["m", "sql"], "loras": ["sql"], "tokenizer": {"path": str(folder)}}},
                "preprocessing": [{"use": use} for use in uses],
            }
        )
        self._pipeline = compile_pipeline(config, load=TokenizerFiles(2**20).load_tokenizer)

    def names(self, body: dict[str, JsonValue], tenant: str = "") -> tuple[list[int], list[int], JsonValue, bool]:
        """The prompt's blocks with model and adapter folded in, its tokens, its salt, and whether they are precise."""
        model = str(body["model"])
        envelope = builders.preprocess_request(path=CHAT, headers={"x-pointsman-tenant": tenant} if tenant else {})
        incoming = Incoming(envelope, parse(CHAT, orjson.dumps(body)), read_headers(envelope.headers))
        assert self._pipeline.run(incoming) is None
        tokenizer = self._pipeline.tokenizers.find_tokenizer(model)
        assert tokenizer is not None
        prompt = tokenizer.build_prompt(incoming)
        facts = describe(incoming, (BLOCK,), prompt)
        blocks = salted(facts.blocks, model, "sql" if model == "sql" else "")
        return _numbers(blocks), list(array("I", prompt.stream)), incoming.field("cache_salt"), facts.blocks_precise


def told(tokens: list[int], model: str, salt: JsonValue) -> list[int]:
    """The names that the agent gives to what an engine stores of this prompt."""
    lora = "sql" if model == "sql" else None
    packed = np.array(tokens, dtype="<u4")
    names = name_blocks(f"{lora}{salt}", packed, ENGINE_BLOCK)
    book = BlockBook(ENGINE_BLOCK)
    book.open_sequence(names, packed, lora, salt if isinstance(salt, str) else None)
    batch = msgspec.msgpack.encode([0.0, book.build_events(names, []), 0])
    blocks = EngineBlocks(BLOCK)
    for event in Decoder().decode(batch):
        blocks.apply_event(0, event, "m")
    return blocks.held()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Gateway:
    return Gateway(folder)


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
texts = st.lists(st.sampled_from(SENTENCES) | st.text(letters, max_size=20), min_size=1, max_size=4)


@pytest.mark.requirement("S4-6", "S4-7")
@given(contents=texts, model=st.sampled_from(["m", "sql"]), salt=st.none() | st.sampled_from(["pepper", "x"]))
def test_a_chat_has_the_names_of_the_blocks_that_its_engine_stores(
    gateway: Gateway, contents: list[str], model: str, salt: str | None
) -> None:
    messages: list[JsonValue] = [{"role": "user", "content": content} for content in contents]
    body: dict[str, JsonValue] = {"model": model, "messages": messages}
    if salt is not None:
        body["cache_salt"] = salt
    names, tokens, engine_salt, precise = gateway.names(body)
    assert precise
    assert names == told(tokens, model, engine_salt)


def test_a_tenant_matches_what_engines_tell_only_with_a_salt_that_they_know(folder: Path) -> None:
    body: dict[str, JsonValue] = {"model": "m", "messages": [{"role": "user", "content": SENTENCES[0]}]}
    names, tokens, salt, precise = Gateway(folder, "identity-headers").names(body, "acme")
    assert (salt, precise) == (None, False)
    assert not set(names) & set(told(tokens, "m", salt))

    salting = Gateway(folder, "identity-headers", "tenant-salt")
    names, tokens, salt, precise = salting.names(body, "acme")
    assert precise
    assert names == told(tokens, "m", salt)
    others = salting.names(body, "evil")[0]
    assert not set(names) & set(others)


def _numbers(blocks: bytes) -> list[int]:
    return np.frombuffer(blocks, dtype="<u8").tolist()
