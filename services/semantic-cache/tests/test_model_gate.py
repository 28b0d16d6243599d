"""A model in the place of the words' order: what passes, whose text is where, and what happens without the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman_contracts.cache import CachePurge
from pointsman_contracts.journey import Journey, Stage
from pointsman_contracts.reply import Answer
from pointsman_core.config import ConfigError, GateSettings, load
from pointsman_semantic_cache.adapters.endpoint_gate import EndpointGate
from pointsman_semantic_cache.adapters.model_gates import ModelGates
from pointsman_semantic_cache.domain.entry import Partition
from pointsman_semantic_cache.domain.model_gate import GateUnavailable, ModelGate
from pointsman_semantic_cache.domain.questions import LONGEST_S, Asking, OpenQuestions
from pointsman_testing.pair_models import cross_encoder, nli_model

from .world import ASKED, World, told

TURNED = "For dogs, is aspirin harmless?"
DENIED = "Is aspirin not safe for dogs?"
SERVICE = {"use": "endpoint", "url": "http://gate.example"}
HERE = Partition("default", "acme", "", "/llama-8b/llama-8b", "e")


def gated(gate: Mapping[str, object] = SERVICE) -> Mapping[str, object]:
    """Every question of a partition is close, so that the gate alone decides."""
    return {"caches": {"default": {"embeddings": {"use": "lexical", "threshold": 0.05}, "gate": gate}}}


class FakeGate:
    """A model that says what a test wants; also finds itself."""

    name = "fake"

    def __init__(self) -> None:
        self.says: float | None = 1.0
        self.problem: Exception | None = None
        self.hangs = False
        self.asked: list[tuple[str, str]] = []

    async def get(self, settings: GateSettings) -> ModelGate:
        return self

    async def compare_texts(self, one: str, other: str) -> float | None:
        self.asked.append((one, other))
        if self.hangs:
            await asyncio.Event().wait()
        if self.problem is not None:
            raise self.problem
        return self.says

    async def close(self) -> None: ...


@pytest.fixture
def gate() -> FakeGate:
    return FakeGate()


def count(world: World, name: str, **labels: str) -> float | None:
    return world.registry.get_sample_value(f"pointsman_cache_{name}_total", {"cache": "default", **labels})


async def test_a_question_in_other_words_gets_the_answer_where_the_model_says_that_it_means_the_same(
    gate: FakeGate,
) -> None:
    words = World(gated({"use": "words"}))
    await words.keep(await words.look_up())
    assert told(await words.look_up(TURNED)) == "miss"
    world = World(gated(), gates=gate)
    await world.keep(await world.look_up())
    gate.says = 0.91
    meant = await world.look_up(TURNED)
    assert isinstance(meant, Answer)
    assert told(meant) == "semantic"
    assert (meant.trail[-1].note or "").endswith(", fake 0.910")
    assert gate.asked == [(TURNED, ASKED)]


@pytest.mark.parametrize(("says", "difference"), [(0.89, "model"), (float("nan"), "model"), (None, "too long")])
async def test_a_request_that_the_model_takes_for_another_question_goes_on_even_where_the_words_agree(
    gate: FakeGate, says: float | None, difference: str
) -> None:
    world = World(gated(), gates=gate)
    await world.keep(await world.look_up())
    gate.says = says
    other = await world.look_up("Is aspirin safe for the dogs?")
    assert isinstance(other, Journey)
    assert (told(other), other.level) == ("miss", "full")
    assert other.trail[-1].note == f"miss: lexical: close, but for {difference}"
    assert count(world, "gate_refusals", difference=difference) == 1


async def test_an_answer_that_another_process_keeps_has_no_text_and_never_passes_the_model(gate: FakeGate) -> None:
    one, other = World(gated(), gates=gate), World(gated(), gates=gate)
    assert await other.keep(await one.look_up()) == "kept"
    asked = await other.look_up(TURNED)
    assert isinstance(asked, Journey)
    assert asked.trail[-1].note == "miss: lexical: close, but for no text"
    assert gate.asked == []
    assert told(await other.look_up()) == "hit"


async def test_the_text_of_a_question_leaves_the_process_in_no_message_and_no_log(
    gate: FakeGate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    world = World(gated(), gates=gate)
    journey = await world.look_up("Has Mallory taken zanthomyl?")
    await world.keep(journey)
    gate.problem = GateUnavailable("it fails")
    failed = await world.look_up("Did Mallory take zanthomyl?")
    gate.problem = None
    meant = await world.look_up("Did Mallory take zanthomyl?")
    assert told(meant) == "semantic"
    [(_, entry)] = world.stores.memory.list_entries()
    assert entry.question == "Has Mallory taken zanthomyl?"
    messages = [each.encode().decode() for each in (journey, failed, meant)]
    said = " ".join([*messages, *(str(vars(record)) for record in caplog.records), repr(entry)])
    assert not [word for word in ("mallory", "zanthomyl") if word in said.lower()]


async def test_a_text_goes_with_its_answer_whether_that_is_kept_or_not(gate: FakeGate) -> None:
    world = World(gated(), gates=gate)
    for status, outcome in ((200, "kept"), (500, "error")):
        journey = await world.look_up(headers={"cache-control": "no-cache"})
        assert len(world.questions) == 1
        assert await world.keep(journey, status=status) == outcome
        assert len(world.questions) == 0
    await world.look_up(headers={"cache-control": "no-cache"})
    await world.handlers.purge(CachePurge(tenant="globex"))
    assert len(world.questions) == 1
    await world.handlers.purge(CachePurge(tenant="acme"))
    assert len(world.questions) == 0


async def test_no_text_waits_for_an_answer_that_does_not_come_by_here_or_that_no_model_looks_at(gate: FakeGate) -> None:
    world = World(gated(), gates=gate)
    await world.look_up(response=(Stage(service="guard"),))
    await world.look_up("What else?", headers={"cache-control": "no-store"})
    words = World(gated({"use": "words"}))
    await words.keep(await words.look_up())
    await words.look_up(TURNED)
    assert (len(world.questions), len(words.questions)) == (0, 0)
    [(_, entry)] = words.stores.memory.list_entries()
    assert entry.question is None


async def test_texts_survive_a_restart_with_the_answers(gate: FakeGate, tmp_path: Path) -> None:
    before = World(gated(), folder=tmp_path, gates=gate)
    await before.keep(await before.look_up())
    await before.stores.close()
    after = World(gated(), folder=tmp_path, gates=gate)
    after.stores.load_snapshot(0)
    assert told(await after.look_up(TURNED)) == "semantic"


@pytest.mark.parametrize("slow", [False, True])
async def test_a_model_that_fails_or_is_slow_is_no_match_counted_and_logged_once(
    gate: FakeGate, caplog: pytest.LogCaptureFixture, *, slow: bool
) -> None:
    world = World(gated({**SERVICE, "timeout": "1ms"}), gates=gate)
    await world.keep(await world.look_up())
    gate.hangs, gate.problem = slow, GateUnavailable("it fails")
    for question in (TURNED, DENIED):
        journey = await world.look_up(question)
        assert isinstance(journey, Journey)
        assert (told(journey), journey.level) == ("miss", "degraded")
        assert journey.reasons == ("semantic-cache: gate unavailable",)
    assert count(world, "gate_failures") == 2
    assert count(world, "lookups", result="failed", plan="") == 2
    assert await world.keep(journey) == "kept"
    told_of = [record for record in caplog.records if record.getMessage() == "degraded"]
    assert len(told_of) == 1


@pytest.mark.parametrize("write", [cross_encoder, nli_model])
async def test_a_model_in_a_folder_decides(write: Callable[[Path], Path], tmp_path: Path) -> None:
    gates = ModelGates()
    world = World(gated({"use": "onnx", "directory": str(write(tmp_path)), "timeout": "1m"}), gates=gates)
    await world.keep(await world.look_up())
    assert told(await world.look_up(TURNED)) == "semantic"
    assert [told(await world.look_up(other)) for other in (DENIED, "Is aspirin safe for old dogs?")] == ["miss"] * 2
    await gates.close()


async def test_a_folder_without_a_model_degrades_requests_and_says_so(tmp_path: Path) -> None:
    gates = ModelGates()
    world = World(gated({"use": "onnx", "directory": str(tmp_path), "timeout": "1m"}), gates=gates)
    await world.keep(await world.look_up())
    journey = await world.look_up(TURNED)
    assert isinstance(journey, Journey)
    assert journey.reasons == ("semantic-cache: gate unavailable",)
    with pytest.raises(GateUnavailable, match=r"neither model\.onnx nor"):
        await gates.get(GateSettings.model_validate({"use": "onnx", "directory": str(tmp_path), "timeout": "1m"}))
    await gates.close()


class Reranker:
    """Answers as a test says; a question alone is a score of its own."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str | None, dict[str, object]]] = []
        self.scores: dict[object, object] = {}
        self.answer: object = None
        self.status = 200

    async def rerank(self, request: web.Request) -> web.Response:
        document = await request.json()
        self.asked.append((request.headers.get("authorization"), document))
        ranks = [{"index": 0, "score": self.scores.get(document["query"], 0.5)}]
        return web.json_response(ranks if self.answer is None else self.answer, status=self.status)


@pytest.fixture
async def reranker() -> AsyncIterator[Reranker]:
    made = Reranker()
    app = web.Application()
    app.router.add_post("/rerank", made.rerank)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01)
    made.url = str(server.make_url("/")).rstrip("/")
    yield made
    await server.close()


async def test_a_service_compares_in_both_orders_and_the_lower_score_counts(
    reranker: Reranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATE_KEY", "sk-1")
    gate = EndpointGate(reranker.url + "/", "env:GATE_KEY", 5.0)
    reranker.scores = {"one": 0.75, "other": 0.25}
    assert await gate.compare_texts("one", "other") == 0.25
    rest = {"raw_scores": False, "truncate": False}
    assert sorted(reranker.asked, key=str) == [
        ("Bearer sk-1", {"query": "one", "texts": ["other"]} | rest),
        ("Bearer sk-1", {"query": "other", "texts": ["one"]} | rest),
    ]
    reranker.status = 413
    assert await gate.compare_texts("one", "other") is None
    await gate.close()


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (424, None, "answers 424"),
        (200, {"error": "secret"}, "with scores from 0 to 1"),
        (200, [{"index": 0, "score": 7.5}], "with scores from 0 to 1"),
        (200, [], "with one score for each text"),
        (200, [{"index": 1, "score": 0.9}], "with one score for each text"),
    ],
)
async def test_a_service_that_gives_no_scores_is_logged_without_the_questions(
    reranker: Reranker, status: int, answer: object, words: str
) -> None:
    reranker.status, reranker.answer = status, answer
    gate = EndpointGate(reranker.url, None, 5.0)
    with pytest.raises(GateUnavailable, match=words) as error:
        await gate.compare_texts("secret", "other")
    assert "secret" not in str(error.value)
    await gate.close()


def test_texts_of_requests_under_way_are_bounded_in_size_and_time() -> None:
    questions = OpenQuestions(most_bytes=10)
    one, two, three = (Asking("r", HERE, key) for key in (b"1", b"2", b"3"))
    questions.remember_text(one, "éé", 0)
    questions.remember_text(two, "bbbbb", 1)
    assert len(questions) == 2
    questions.remember_text(two, "bbbbbb", 2)
    assert len(questions) == 2
    questions.remember_text(three, "c", 3)
    assert questions.take_text(one) is None
    assert questions.take_text(two._replace(request_id="another")) is None
    assert questions.take_text(two._replace(partition=HERE._replace(tenant="another"))) is None
    questions.expire_texts(2 + LONGEST_S)
    assert (questions.take_text(two), questions.take_text(three), questions.take_text(three)) == (None, "c", None)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"gate": "onnx"}, "`use: onnx` needs `directory`"),
        ({"gate": {"use": "endpoint"}}, "`use: endpoint` needs `url`"),
        ({"gate": {"use": "words", "directory": "/models/nli"}}, "`directory` isn't for `use: words`"),
        ({"gate": {**SERVICE, "label": "entailment"}}, "`label` isn't for `use: endpoint`"),
        ({"gate": {"use": "endpoint", "url": "http://10.0.0.9"}}, "`private: true` allows it"),
        ({"gate": SERVICE, "embeddings": None}, "`gate` needs `embeddings`"),
        ({"gate": SERVICE, "store": {"use": "postgres", "url": "env:D"}}, "`gate: endpoint` needs `store: memory`"),
    ],
)
def test_a_gate_that_cannot_be_is_refused_in_words(more: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({"caches": {"default": {"embeddings": "lexical"} | more}})
    assert problem in str(error.value)
