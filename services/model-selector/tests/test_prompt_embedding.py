"""Selection by meaning: one embedding for each request, and words when there is none."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import orjson
import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, JourneyChanges, RequestFacts, Stage
from pointsman_contracts.message import read_fields
from pointsman_core.config import ConfigError, Embeddings, load
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_embedding.carried_vector import CARRIED, carried
from pointsman_embedding.embedder import EmbedderUnavailable, Vector
from pointsman_journey.content_client import ContentGone
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.domain.selector import CompiledSelector, Selected
from pointsman_model_selector.prompt_embedding import EmbeddedPrompt, PromptEmbedder
from pointsman_plugins.selecting import ModelQuestion, ModelStates
from pointsman_testing import builders, eventually

CODE, TALK = "Please mend my broken loop", "How was your holiday?"
ONNX: Final = {"use": "onnx", "directory": "/models/m", "timeout": "100ms"}


class Embedding:
    """Two dimensions: about programs, and about anything else. Fails or hangs as a test wants."""

    name = "fake"
    threshold = 0.8

    def __init__(self) -> None:
        self.embedded: list[str] = []
        self.fails = self.hangs = False
        self.places = 2

    async def embed(self, text: str) -> Vector | None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails:
            raise EmbedderUnavailable("no model")
        self.embedded.append(text)
        row = np.zeros(self.places, np.float32)
        row[0 if any(word in text for word in ("loop", "program", "bug")) else 1] = 1.0
        return row

    async def embed_start(self, text: str) -> Vector | None:
        return await self.embed(text)

    async def close(self) -> None:
        return

    def prepare(self, wanted: Iterable[Embeddings]) -> None:
        del wanted

    async def get(self, settings: Embeddings) -> "Embedding":
        del settings
        return self


class Bodies:
    """The edge's bodies."""

    def __init__(self) -> None:
        self.text: str | None = CODE

    async def fetch_body(self, edge: str, request_id: str) -> bytes:
        if self.text is None:
            raise ContentGone(edge)
        return orjson.dumps({"messages": [{"role": "user", "content": self.text}]})


class World:
    """A selector and its embedder."""

    def __init__(self, **scorer: object) -> None:
        self.model = Embedding()
        self.bodies = Bodies()
        self.registry = CollectorRegistry()
        self.embedder = PromptEmbedder(self.model, self.bodies, self.registry)
        self.selector = selector(scorer)

    async def embed_examples(self) -> None:
        self.embedder.prepare([self.selector])
        await eventually(lambda: len(self.model.embedded) >= len(self.selector.comparing[0].texts_to_embed()))
        await eventually(lambda: self.embedder._learning is None or self.embedder._learning.done())  # pyright: ignore[reportPrivateUsage]
        self.model.embedded.clear()

    async def choose(self, *stages: str) -> tuple[Selected, EmbeddedPrompt, JourneyChanges]:
        assert self.selector.embeddings is not None
        journey = asking(self.bodies.text or "", *stages)
        embedded = await self.embedder.embed(journey, self.selector.embeddings)
        question = ModelQuestion(journey, ModelStates(), 0.0, 0, embedded.embedding)
        changes: JourneyChanges = {}
        embedded.write(changes, journey)
        return self.selector.select_model(question), embedded, changes

    def counted(self, outcome: str) -> float:
        return self.registry.get_sample_value("pointsman_model_selector_embeddings_total", {"outcome": outcome}) or 0.0


def selector(scorer: Mapping[str, object]) -> CompiledSelector:
    described = {
        "coder": {"pool": "p", "strengths": "programming", "examples": ["Find the bug in this function"]},
        "talker": {"pool": "p", "strengths": "small talk", "examples": ["Tell me a story"]},
    }
    use = {"use": "semantic-match", "embeddings": ONNX, **scorer}
    document = {
        "pools": {"p": {"models": list(described)}},
        "models": described,
        "selectors": {"s": {"scorers": [use]}},
    }
    return compile_all(load(document))["s"]


def asking(text: str, *stages: str) -> Journey:
    produced = {PROMPT_VECTOR.name: {"kind": LEXICAL, "values": encode(vector(text))}} if text else {}
    facts = read_fields(RequestFacts, {"api": "chat.completions", "attributes": produced})
    journey = builders.journey("model-selector", model="auto", request=facts)
    return journey.changed(itinerary=(*journey.itinerary[:1], *[Stage(service=name) for name in stages]))


@pytest.mark.requirement("S3-11")
async def test_a_prompt_with_other_words_than_the_strengths_finds_its_model_by_meaning() -> None:
    world = World()
    await world.embed_examples()
    selected, _, changes = await world.choose()
    assert selected.model.name == "coder"
    assert selected.note == "default: coder (1.00); semantic-match: fake, coder 1.00"
    assert "level" not in changes
    world.bodies.text = TALK
    assert (await world.choose())[0].model.name == "talker"


async def test_the_vector_travels_to_a_cache_that_comes_later_and_is_used_for_the_same_text_alone() -> None:
    world = World()
    await world.embed_examples()
    _, _, changes = await world.choose("semantic-cache", "scheduler")
    assert "request" in changes
    attributes = changes["request"].attributes
    value = attributes[CARRIED.name]
    assert isinstance(value, dict)
    found = carried(attributes, "fake", CODE)
    assert found is not None
    assert found.tolist() == pytest.approx([1.0, 0.0])
    assert carried(attributes, "fake", TALK) is None
    assert carried(attributes, "another", CODE) is None
    assert carried({CARRIED.name: {**value, "values": "?"}}, "fake", CODE) is None
    assert "request" not in (await world.choose("scheduler"))[2]
    assert world.model.embedded == [CODE, CODE]


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
async def test_without_a_vector_words_decide_and_the_decision_says_so(trouble: str) -> None:
    world = World()
    await world.embed_examples()
    setattr(world.model, trouble, True)
    world.bodies.text = "programming, please"
    selected, _, changes = await world.choose()
    assert selected.model.name == "coder"
    assert selected.note.endswith("semantic-match: lexical (embeddings unavailable)")
    assert changes == {"level": "degraded", "reasons": ("model-selector: embeddings unavailable",)}
    await world.choose()
    assert (world.counted("failed"), world.counted("paused")) == (1.0, 1.0)


async def test_examples_that_could_not_be_embedded_are_embedded_later() -> None:
    world = World()
    world.model.fails = True
    world.embedder.prepare([world.selector])
    await eventually(lambda: world.embedder._learning is not None and world.embedder._learning.done())  # pyright: ignore[reportPrivateUsage]
    world.model.fails = False
    assert (await world.choose())[0].note.endswith("lexical (the examples aren't embedded yet)")
    world.embedder.embed_examples()
    await eventually(lambda: len(world.model.embedded) >= 4)
    await eventually(lambda: world.embedder._learning is not None and world.embedder._learning.done())  # pyright: ignore[reportPrivateUsage]
    assert (await world.choose())[0].note.endswith("fake, coder 1.00")


async def test_a_service_that_changes_its_model_is_not_compared_with_the_old_examples() -> None:
    world = World()
    await world.embed_examples()
    world.model.places = 3
    assert (await world.choose())[0].note.endswith("lexical (prompt and examples are of different models)")


async def test_a_request_that_has_ended_and_one_without_text_need_no_vector() -> None:
    world = World()
    await world.embed_examples()
    world.bodies.text = None
    _, embedded, _ = await world.choose()
    assert (embedded.embedding.vector, embedded.embedding.missing) == (None, "")
    world.bodies.text = ""
    assert (await world.choose())[0].note.endswith("no text to match")
    assert world.counted("empty") == 2.0


async def test_a_class_has_the_models_that_the_configuration_gives_it() -> None:
    classes = {
        "programs": {"models": ["coder"], "examples": ["Find the bug in this function"]},
        "talk": {"models": ["talker", "coder"], "examples": ["Tell me a story"]},
    }
    world = World(classes=classes)
    await world.embed_examples()
    world.bodies.text = TALK
    selected, _, _ = await world.choose()
    assert selected.total == pytest.approx(1.0)
    assert "semantic-match: fake, talk 1.00" in selected.note
    world.bodies.text = CODE
    assert (await world.choose())[0].note == "default: coder (1.00); semantic-match: fake, programs 1.00"


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ({"law": {"models": ["coder"]}}, "needs `examples`; classes with their own: code, math, chat, translation"),
        ({"code": {"models": ["nobody"]}}, "nobody"),
    ],
)
def test_a_class_without_examples_or_with_an_unknown_model_is_refused(classes: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        selector({"classes": classes})


def test_two_embedding_models_in_one_selector_are_refused() -> None:
    uses = [{"use": "semantic-match", "name": name, "embeddings": ONNX | {"directory": name}} for name in ("a", "b")]
    document = {
        "pools": {"p": {"models": ["coder"]}},
        "models": {"coder": {"pool": "p", "strengths": "code"}},
        "selectors": {"s": {"scorers": uses}},
    }
    with pytest.raises(ConfigError, match="need the same `embeddings`"):
        compile_all(load(document))


def test_classes_are_told_by_words_without_a_model() -> None:
    chosen = selector({"classes": {"code": {"models": ["coder"]}, "chat": {"models": ["talker"]}}, "embeddings": None})
    assert chosen.embeddings is None
    journey = asking("Write an SQL query that joins two tables")
    selected = chosen.select_model(ModelQuestion(journey, ModelStates(), 0.0, 0))
    assert selected.model.name == "coder"
    assert "semantic-match: lexical, code" in selected.note
