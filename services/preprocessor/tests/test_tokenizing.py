"""Prompts of a model whose tokenizer is configured are known by their token ids."""

import logging
from array import array
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import orjson
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.content import PromptEnd, PromptTokens
from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.subjects import stage_subject
from pointsman_core.config import Config, ConfigError, Tokenizer, load
from pointsman_core.settled_target import salt
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_journey.journeys import Journeys
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, read_folder
from pointsman_plugins.preprocessing import ENGINE_SALT, IDENTITY, Incoming
from pointsman_plugins.prompt import chain
from pointsman_preprocessor.configuration import check, compile_pipeline
from pointsman_preprocessor.domain.model_tokenizers import ModelTokenizers
from pointsman_preprocessor.domain.pipeline import describe
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.handlers import Handlers
from pointsman_preprocessor.tokenizer_files import TokenizerFiles
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses
from pointsman_testing.tiny_tokenizer import CHATML, INSTRUCTIONS, write_tokenizer

CHAT: Final = "/v1/chat/completions"
MESSAGES: Final[JsonValue] = [{"role": "user", "content": "Which track does the train take? " * 9}]


def incoming(path: str = CHAT, **fields: JsonValue) -> Incoming:
    envelope = builders.preprocess_request(path=path)
    return Incoming(envelope, parse(path, orjson.dumps({"model": "m", **fields})), read_headers({}))


def tokenizers(config: Config) -> ModelTokenizers:
    return ModelTokenizers(config, TokenizerFiles(2**20).load_tokenizer)


def configured(folder: Path, **more: object) -> Config:
    return load({"pools": {"p": {"models": ["m"], "tokenizer": {"path": str(folder), **more}}}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "chatml", CHATML)


@pytest.mark.requirement("S4-6", "S4-7")
def test_a_chat_is_hashed_by_the_tokens_of_its_template_and_counted_exactly(folder: Path) -> None:
    request = incoming(messages=MESSAGES)
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    prompt = found.build_prompt(request)
    tokens = PromptTokenizer(read_folder(folder)).tokenize_chat(request.field)
    facts = describe(request, (16,), prompt)
    assert facts.blocks == chain(tokens, 64, salt("", "", "ids"))
    assert (facts.prompt_tokens, facts.tokens_exact, facts.blocks_precise) == (len(tokens) // 4, True, True)
    with_tools: JsonValue = [{"type": "function", "function": {"name": "points"}}]
    other = describe(request, (16,), found.build_prompt(incoming(messages=MESSAGES, tools=with_tools)))
    assert not set(_hashes(facts.blocks)) & set(_hashes(other.blocks))


def test_a_prompt_of_messages_is_hashed_by_the_tokens_of_the_chat_that_the_engine_makes_of_it(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    request, chat = incoming("/v1/messages", messages=MESSAGES, max_tokens=5), incoming(messages=MESSAGES)
    told = [describe(each, (16,), found.build_prompt(each)) for each in (request, chat)]
    assert told[0].blocks == told[1].blocks
    assert told[0].prompt_tokens == told[1].prompt_tokens
    assert all(facts.blocks_precise and facts.blocks for facts in told)


def test_a_prompt_of_responses_has_the_tokenizers_special_tokens_before_those_of_the_chat(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    request, chat = incoming("/v1/responses", input=MESSAGES), incoming(messages=MESSAGES)
    prompt, plain = (list(array("I", found.build_prompt(each).stream)) for each in (request, chat))
    special = prompt[: len(prompt) - len(plain)]
    assert prompt == [*special, *plain]
    assert special, "else nothing is shown: the template of this tokenizer has its own"
    short = incoming("/v1/completions", prompt="x")
    assert list(array("I", found.build_prompt(short).stream))[: len(special)] == special
    facts = describe(request, (16,), found.build_prompt(request))
    assert facts.blocks_precise
    assert facts.prompt_tokens == len(prompt)


@pytest.mark.requirement("S4-12")
def test_the_next_turn_of_a_chat_has_the_blocks_of_the_turn_before(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    turns: list[JsonValue] = [{"role": ("user", "assistant")[n % 2], "content": f"turn {n} " * 20} for n in range(6)]
    shorter = incoming(messages=turns[:3], add_generation_prompt=False)
    first = describe(shorter, (16,), found.build_prompt(shorter)).blocks
    longer = incoming(messages=turns)
    assert describe(longer, (16,), found.build_prompt(longer)).blocks.startswith(first)
    assert len(first) > 8


def test_a_request_that_continues_a_response_has_its_tokens_too_and_no_blocks() -> None:
    alone = incoming("/v1/responses", input="Which track? " * 50)
    own = describe(alone, (16,))
    envelope = replace(alone.envelope, continued_tokens=1000)
    continued = describe(Incoming(envelope, alone.body, alone.headers), (16,))
    assert (continued.prompt_tokens, continued.continued_tokens) == (own.prompt_tokens + 1000, 1000)
    assert (len(continued.blocks), continued.tokens_exact) == (0, False)
    assert (own.continued_tokens, len(own.blocks) > 0) == (None, True)


def test_token_ids_and_a_text_of_the_same_tokens_are_one_prompt(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    text = incoming("/v1/completions", prompt="The train took the left track " * 9)
    known = found.build_prompt(text)
    ids = incoming("/v1/completions", prompt=list(array("I", known.stream)))
    facts = describe(ids, (16,))
    assert facts == replace(describe(text, (16,), known), body_bytes=facts.body_bytes)
    several = incoming("/v1/completions", prompt=["The train", "took the left track"])
    assert found.build_prompt(several).tokens == sum(
        found.build_prompt(incoming("/v1/completions", prompt=each)).tokens
        for each in ("The train", "took the left track")
    )


def test_the_body_is_tokenized_as_processors_changed_it(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    request = incoming(messages=MESSAGES)
    request.set_field("messages", [{"role": "user", "content": "Hi"}])
    assert found.build_prompt(request) == found.build_prompt(incoming(messages=[{"role": "user", "content": "Hi"}]))


def test_a_salt_that_the_engine_has_too_leaves_the_blocks_precise(folder: Path) -> None:
    found = tokenizers(configured(folder)).find_tokenizer("m")
    assert found is not None
    request = incoming(messages=MESSAGES, cache_salt="pepper")
    prompt = found.build_prompt(request)
    salted = describe(request, (16,), prompt)
    assert (salted.blocks, salted.blocks_precise) == (chain(prompt.stream, 64, salt("", "pepper", "ids")), True)

    request.write(IDENTITY, {"tenant": "acme"})
    own = describe(request, (16,), prompt)
    assert (own.blocks, own.blocks_precise) == (chain(prompt.stream, 64, salt("acme", "pepper", "ids")), False)

    request.set_field("cache_salt", "of acme")
    request.write(ENGINE_SALT, True)
    kept_apart = describe(request, (16,), prompt)
    assert (kept_apart.blocks, kept_apart.blocks_precise) == (
        chain(prompt.stream, 64, salt("", "of acme", "ids")),
        True,
    )


def test_each_model_has_the_tokenizer_of_its_pool_or_its_own(tmp_path: Path) -> None:
    one, other = write_tokenizer(tmp_path / "one"), write_tokenizer(tmp_path / "other", CHATML)
    pools: dict[str, object] = {
        "a": {"models": ["small"], "tokenizer": {"path": str(one)}},
        "b": {"models": ["large"], "tokenizer": {"path": str(other)}},
        "c": {"models": ["plain"]},
    }
    models = {"alias": {"pool": "a", "served_as": "small"}, "own": {"pool": "a", "tokenizer": {"path": str(other)}}}
    found = tokenizers(load({"pools": pools, "models": models}))
    paths = [None if (each := found.find_tokenizer(name)) is None else Path(each.name) for name in (
        "small", "alias", "large", "own", "plain", "auto"
    )]  # fmt: skip
    assert paths == [one, one, other, other, None, None]
    alike = tokenizers(load({"pools": {"a": pools["a"]}}))
    assert alike.find_tokenizer("auto") is not None


def test_a_revision_that_says_the_same_reads_nothing_again(folder: Path) -> None:
    files = TokenizerFiles(2**20)
    section = Tokenizer(path=str(folder))
    assert files.load_tokenizer(section, "") is files.load_tokenizer(Tokenizer(path=str(folder)), "")
    assert files.load_tokenizer(section, "") is not files.load_tokenizer(
        Tokenizer(path=str(folder), content_format="string"), ""
    )


def test_a_tokenizer_that_cannot_be_read_is_refused_with_its_place_and_only_where_it_is_read(tmp_path: Path) -> None:
    config = configured(tmp_path / "nowhere")
    check(config)
    with pytest.raises(ConfigError) as refused:
        compile_pipeline(config, load=TokenizerFiles(2**20).load_tokenizer)
    assert refused.value.problems[0][0] == "pools.p.tokenizer"
    assert "nowhere" in str(refused.value)


@pytest.mark.parametrize(
    ("request_of", "reason"),
    [
        (partial(incoming, messages=[{"role": "user", "content": "x" * 5000}]), "too_long"),
        (partial(incoming, "/v1/responses", input="Hi", previous_response_id="r"), "stored"),
        (partial(incoming, "/v1/embeddings", input="Hi"), "api"),
        (partial(incoming, "/v1/completions", prompt=["Hi", [1]]), "api"),
    ],
)
def test_a_request_that_is_not_tokenized_here_says_why(
    folder: Path, request_of: partial[Incoming], reason: str
) -> None:
    found = tokenizers(configured(folder, max_bytes="4KiB")).find_tokenizer("m")
    assert found is not None
    with pytest.raises(NotTokenized) as refused:
        found.build_prompt(request_of())
    assert (refused.value.reason, refused.value.failed) == (reason, False)


TOKENS_OF = "chatml"


class World:
    """A preprocessor with two models, of which the engines of one want tokens, and a profile-picker that keeps what it
    gets."""

    def __init__(self, buses: Buses, folder: Path) -> None:
        self.registry = CollectorRegistry()
        self.edge: Journeys = buses.make("frontend")
        self.journeys: list[Journey] = []
        files = TokenizerFiles(2**20)
        configuration = Configuration(partial(compile_pipeline, load=files.load_tokenizer), self.registry)
        pools: dict[str, dict[str, object]] = {
            name: {"models": [name], "tokenizer": {"path": str(write_tokenizer(folder / name, template))}}
            for name, template in (("chatml", CHATML), ("strict", INSTRUCTIONS))
        }
        pools[TOKENS_OF]["send_tokens"] = "nvext"
        self.told: list[tuple[str, PromptTokens]] = []
        assert configuration.offer_revision(1, orjson.dumps({"pools": pools}).decode()), configuration.refused
        self.threads = ThreadPoolExecutor(max_workers=1)
        handlers = Handlers(
            configuration, self.registry, thread_above=50_000, tokenize_in_thread_above=2_000, max_values=50_000,
            threads=self.threads, tell=self._hear,
        )  # fmt: skip
        buses.make("preprocessor").stage(PreprocessRequest, handlers.preprocess)
        buses.make("profile-picker").stage(Journey, self._keep)

    def _hear(self, message: PromptTokens | PromptEnd, edge: str) -> None:
        assert isinstance(message, PromptTokens), "no edge names the blocks of answers"
        self.told.append((edge, message))

    def _keep(self, journey: Journey, hop: Hop[Journey]) -> None:
        del hop
        self.journeys.append(journey)

    async def send(self, model: str, *contents: str, headers: dict[str, str] | None = None) -> Journey:
        body = {"model": model, "messages": [{"role": "user", "content": content} for content in contents]}
        request = builders.preprocess_request(path=CHAT, headers=headers or {})
        known = len(self.journeys)
        self.edge.bus.link.publish(
            stage_subject("preprocessor"), request.encode() + b"\n" + orjson.dumps(body), "_INBOX.test"
        )
        await eventually(lambda: len(self.journeys) > known)
        return self.journeys[-1]

    def counted(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("pointsman_preprocess_prompts_total", {"outcome": outcome})


@pytest.fixture
async def world(buses: Buses, tmp_path: Path) -> AsyncIterator[World]:
    made = World(buses, tmp_path)
    await buses.meet()
    yield made
    made.threads.shutdown()


async def test_short_and_long_prompts_are_tokenized_alike_in_and_off_the_loop(world: World) -> None:
    for text in ("Hi", "word " * 2_000, "word " * 20_000):
        journey = await world.send("chatml", text)
        assert journey.request.tokens_exact
        assert journey.trail[0].note == "tokenized"
        assert (journey.level, journey.reasons) == ("full", ())
    assert world.counted("tokenized") == 3


async def test_a_template_that_fails_is_counted_logged_once_and_seen_in_the_decision(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await world.send("strict", "canary-7c1f", "canary-7c1f")
        journey = await world.send("strict", "canary-7c1f", "canary-7c1f")
    reason = "not tokenized: the chat template failed: it refused the conversation"
    assert (journey.level, journey.reasons, journey.trail[0].note) == ("degraded", (reason,), reason)
    assert not journey.request.tokens_exact
    assert journey.request.prompt_tokens > 0
    assert world.counted("template") == 2
    assert caplog.text.count("prompt_not_tokenized") == 1
    assert "canary" not in caplog.text
    assert b"canary" not in journey.encode()


def _hashes(blocks: bytes) -> list[bytes]:
    return [blocks[at : at + 8] for at in range(0, len(blocks), 8)]


@pytest.mark.requirement("S1-26", "S1-27", "S1-43")
@pytest.mark.parametrize("text", ["Hi", "word " * 2_000])
async def test_tokens_are_counted_once_and_sent_to_the_requests_edge(world: World, text: str) -> None:
    journey = await world.send(TOKENS_OF, text)
    [(edge, tokens)] = world.told
    assert (edge, tokens.request_id, tokens.model) == (journey.edge, journey.request_id, TOKENS_OF)
    assert len(tokens.ids) == 4 * journey.request.prompt_tokens
    assert world.counted("tokenized") == 1
    assert tokens.ids not in journey.encode()


async def test_unwanted_tokens_arent_sent_unless_the_route_is_asked_for(world: World) -> None:
    await world.send("strict", "Hi")
    assert world.told == []
    await world.send("strict", "Hi", headers={"x-routing-request": "true"})
    assert len(world.told) == 1
