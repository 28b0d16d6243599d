"""The real Envoy between a picker whose decisions, and engines whose every byte, a test decides."""

import asyncio
import contextlib
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import AnswerUse, BodyEdit, HeaderEdit, Stage, Target
from pointsman_contracts.reply import ChosenEndpoint, Rejection
from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_contracts.response_stage import ResponseReview, TextEdit, Verdict
from pointsman_contracts.session import RequestSession
from pointsman_core.config import EdgeSettings, EngineTls, load
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.edge import Surroundings
from pointsman_edge.taking_in.request_headers import ENGINE_ORDERS
from pointsman_epp_adapter.main import EppAdapter
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_runtime.telling.telemetry import Tracing
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.fake_stages import FakeReviewers, FakeStages, RecordedEvents
from pointsman_testing.mock_providers import WORDS, MockProvider
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine, answer_at_once

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

CERTIFICATES = Path(__file__).parents[2] / "services/frontend/tests/certificates"
KINDS: tuple[str, ...] = ("openai", "anthropic")
StartEnvoy = Callable[..., Awaitable[str]]
JSON = {"content-type": "application/json"}
BODY = b'{"model":"llama-8b","messages":[]}'
EVENT = b'data: {"model":"llama-8b","choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
HASTY = EdgeSettings(first_byte_timeout=0.5, stream_idle_timeout=0.5)
BRIEF = EdgeSettings(request_timeout=2.0)


@dataclass
class Setup:
    """Envoys, engines, and who decides."""

    doors: dict[str, str]
    first: ScriptedEngine
    second: ScriptedEngine
    nobody: str
    """URL where no engine listens."""
    stages: FakeStages
    reviewers: FakeReviewers
    events: RecordedEvents
    http: aiohttp.ClientSession
    far: dict[str, MockProvider]
    adapter: tuple[str, int]
    """Where the adapter listens."""

    async def ask(self, door: str, headers: dict[str, str] | None = None, body: bytes = BODY) -> tuple[int, bytes, Any]:
        """Send a chat; returns status, body, headers."""
        url = self.doors[door] + "/v1/chat/completions"
        async with self.http.post(url, data=body, headers={**JSON, **(headers or {})}) as answer:
            return answer.status, await answer.read(), answer.headers

    async def completed(self) -> ResponseCompleted:
        """How the only request of the test ended."""
        await eventually(lambda: self.events.of(ResponseCompleted))
        (done,) = self.events.of(ResponseCompleted)
        return done

    def clear(self) -> None:
        """Begin a test."""
        self.stages.urls = (self.first.url, self.second.url)
        self.stages.changes = {}
        self.stages.reply = None
        self.stages.let_go.set()
        self.stages.asked.clear()
        self.reviewers.asked.clear()
        self.reviewers.say = FakeReviewers().say
        self.events.sent.clear()
        for provider in self.far.values():
            provider.status, provider.breaks, provider.refuses = 200, "", lambda _: None
            provider.asked.clear()
        for engine in (self.first, self.second):
            engine.script = answer_at_once
            engine.received.clear()


def refusing(header: str) -> dict[str, Any]:
    """A filter of Envoy's that answers requests with this header by itself."""
    return {
        "name": f"envoy.filters.http.fault.{header}",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 429, "percentage": {"numerator": 100}},
            "headers": [{"name": header, "present_match": True}],
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_setup(start_envoy: StartEnvoy) -> AsyncIterator[Setup]:
    stages, reviewers, events = FakeStages(), FakeReviewers(), RecordedEvents()
    far: dict[str, MockProvider] = {kind: MockProvider(kind) for kind in KINDS}
    for provider in far.values():
        await provider.__aenter__()
    settled = {"credential": "env:FAR_KEY", "prompt_cache_key": True}
    providers = {kind: {"kind": kind, "base_url": each.url, **settled} for kind, each in far.items()}
    models = {"models": ["llama-8b"]}
    compiled = compile_policy(load({"pools": {"llama-8b": models}, "providers": providers}), 1)
    settings = EppAdapterSettings.model_validate(
        {"instance": "epp-1", "port": 0, "drain_timeout_s": 1, "providers": True}
    )
    adapter = EppAdapter(
        Surroundings(
            instance="epp-1",
            policy=lambda: compiled,
            stages=stages,
            reviewers=reviewers,
            bus=events,
            tracing=Tracing(),
            registry=CollectorRegistry(),
        ),
        settings,
    )
    await adapter.server.start()
    gone = ScriptedEngine()
    async with gone:
        nobody = gone.url
    async with ScriptedEngine() as first, ScriptedEngine() as second, aiohttp.ClientSession() as http:
        there = ("127.0.0.1", urlsplit(adapter.server.url).port or 0)
        engines = [("127.0.0.1", urlsplit(url).port or 0) for url in (nobody, first.url, second.url)]
        around = {"filters": [refusing("x-refused-before")], "behind": [refusing("x-refused-behind")]}
        doors = {
            "usual": await start_envoy(there, engines, **around),
            "buffered": await start_envoy(there, engines, buffered=True, **around),
            "duplex": await start_envoy(there, engines, duplex=True, **around),
            "hasty": await start_envoy(there, engines, limits=HASTY),
            "brief": await start_envoy(there, engines, limits=BRIEF),
            "open": await start_envoy(engines[0], engines[1:2], fail_open=True),
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAR_KEY", "canary-key")
            yield Setup(doors, first, second, nobody, stages, reviewers, events, http, far, there)
        await adapter.server.stop()
        for provider in far.values():
            await provider.__aexit__()


@pytest_asyncio.fixture(loop_scope="module")
async def setup(shared_setup: Setup) -> Setup:
    shared_setup.clear()
    return shared_setup


each_way = pytest.mark.parametrize("door", ["usual", "buffered", "duplex"])


@each_way
async def test_headers_and_body_reach_the_engine_as_decided(setup: Setup, door: str) -> None:
    setup.stages.changes = {
        "headers": (HeaderEdit(name="x-prefiller-host-port", value="10.0.0.9:8000"),),
        "body": (BodyEdit(field="model", value="served-8b"),),
    }
    status, _, _ = await setup.ask(door, {"x-user-id": "root", "authorization": "Bearer secret"})
    assert status == 200
    (received,) = setup.first.received
    assert json.loads(received.body) == {"model": "served-8b", "messages": []}
    # Envoy sends what passed it in full duplex without a length.
    assert received.header("content-length") == (str(len(received.body)) if door == "buffered" else None)
    assert received.header("x-prefiller-host-port") == "10.0.0.9:8000"
    assert received.header("x-gateway-destination-endpoint") == ",".join(
        urlsplit(url).netloc for url in setup.stages.urls
    )
    assert received.header("x-user-id") is None
    assert received.header("authorization") is None


async def test_while_no_picker_answers_a_gateway_that_fails_open_passes_no_order_of_a_clients_on(setup: Setup) -> None:
    """A sidecar would connect to the hosts that some of them name."""
    orders = {name.decode(): "6.6.6.6:1" for name in ENGINE_ORDERS}
    status, _, _ = await setup.ask("open", orders | {"x-mine": "1"})
    assert status == 200
    (received,) = setup.first.received
    assert received.header("x-mine") == "1"
    assert [name for name in orders if received.header(name) is not None] == []


FAILURES: tuple[int | str, ...] = ("refuses", "closes", 302, 308, 500, 503, 507, 429, 529, 401, 403, 404)


def failing(how: int | str) -> Callable[[Received], Awaitable[None]]:
    """A script that answers with a status, or hangs up."""

    async def fail(request: Received) -> None:
        if isinstance(how, int):
            await request.answer(b'{"error":{"message":"no"}}', status=how)
        else:
            request.cut()

    return fail


@each_way
@pytest.mark.parametrize("how", FAILURES)
async def test_the_second_endpoint_serves_when_the_first_doesnt(setup: Setup, door: str, how: int | str) -> None:
    setup.first.script = failing(how)
    if how == "refuses":
        setup.stages.urls = (setup.nobody, setup.second.url)
    status, body, _ = await setup.ask(door)
    assert (status, body) == (200, ANSWER)
    done = await setup.completed()
    assert (done.outcome, done.worker, len(done.attempts)) == ("ok", "worker-2", 2)
    assert [event.worker for event in setup.events.of(AttemptFailed)] == ["worker-1"]


async def test_an_endpoint_that_is_silent_for_longer_than_predicted_shares_the_request(setup: Setup) -> None:
    async def say_nothing(request: Received) -> None:
        await request.gone.wait()

    setup.first.script = say_nothing
    setup.stages.changes = {"first_byte_within_ms": 100.0}
    status, body, _ = await setup.ask("usual")
    assert (status, body) == (200, ANSWER)
    assert (len(setup.first.received), len(setup.second.received)) == (1, 1)
    await eventually(lambda: setup.first.received[0].gone.is_set())
    done = await setup.completed()
    assert [(each.worker, each.outcome) for each in done.attempts] == [("worker-1", "failed"), ("worker-2", "answered")]


async def test_an_endpoint_that_answers_late_is_not_ended_by_a_prediction(setup: Setup) -> None:
    async def hold(request: Received) -> None:
        await eventually(lambda: setup.second.received)
        await request.answer(ANSWER)

    async def say_nothing(request: Received) -> None:
        await request.gone.wait()

    setup.first.script, setup.second.script = hold, say_nothing
    setup.stages.changes = {"first_byte_within_ms": 100.0}
    assert (await setup.ask("usual"))[:2] == (200, ANSWER)


async def test_a_prediction_of_the_first_byte_leaves_the_bound_of_silence_in_a_stream(setup: Setup) -> None:
    async def stream(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await request.gone.wait()

    setup.first.script = stream
    setup.stages.changes = {"first_byte_within_ms": 100.0}
    with pytest.raises(aiohttp.ClientPayloadError):
        await setup.ask("hasty", body=b'{"model":"llama-8b","messages":[],"stream":true}')
    await eventually(lambda: all(request.gone.is_set() for request in setup.first.received))


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_when_all_engines_fail_alike_the_client_gets_the_words_of_the_last(setup: Setup, status: int) -> None:
    setup.first.script = setup.second.script = failing(status)
    answer, body, _ = await setup.ask("usual")
    assert (answer, body) == (status, b'{"error":{"message":"no"}}')
    assert (len(setup.first.received), len(setup.second.received)) == (1, 1)
    done = await setup.completed()
    outcome = "limited" if status == 429 else "failed"
    assert [(each.worker, each.outcome, each.status) for each in done.attempts] == [
        ("worker-1", "failed", None),
        ("worker-2", outcome, status),
    ]
    assert [event.worker for event in setup.events.of(AttemptFailed)] == ["worker-1", "worker-2"]


async def test_an_only_engine_that_closes_a_connection_while_a_request_comes_is_asked_again(setup: Setup) -> None:
    async def close_the_first(request: Received) -> None:
        if len(setup.first.received) == 1:
            request.cut()
        else:
            await request.answer(ANSWER)

    setup.stages.urls = (setup.first.url,)
    setup.first.script = close_the_first
    status, body, _ = await setup.ask("usual")
    assert (status, body, len(setup.first.received)) == (200, ANSWER, 2)


async def test_the_error_of_an_only_engine_is_passed_on_at_once(setup: Setup) -> None:
    setup.stages.urls = (setup.first.url,)
    setup.first.script = failing(500)
    assert (await setup.ask("usual"))[0] == 500
    assert len(setup.first.received) == 1


@pytest.mark.parametrize("name", [None, "localhost", "other.test"])
async def test_envoy_begins_tls_with_the_engines_of_a_pool_that_has_it(
    setup: Setup, start_envoy: StartEnvoy, name: str | None
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "first.crt", CERTIFICATES / "first.key")
    async with ScriptedEngine(tls=context) as engine:
        address = ("127.0.0.1", engine.port)
        tls = {address: EngineTls(ca=str(CERTIFICATES / "first.crt"), server_name=name)}
        plain = ("127.0.0.1", setup.second.port)
        setup.doors["tls"] = await start_envoy(setup.adapter, [address, plain], tls=tls)
        setup.stages.urls = (engine.url, setup.second.url)
        status, body, _ = await setup.ask("tls")
        assert (status, body) == (200, ANSWER)
        refused = name == "other.test"
        assert (len(engine.received), len(setup.second.received)) == ((0, 1) if refused else (1, 0))


async def test_an_endpoint_that_says_nothing_in_time_is_left_for_the_second(setup: Setup) -> None:
    async def say_nothing(request: Received) -> None:
        await request.gone.wait()

    setup.first.script = say_nothing
    status, body, headers = await answered(lambda: setup.ask("hasty"))
    assert (status, body) == (200, ANSWER)
    failed = setup.events.of(AttemptFailed)
    assert [each.worker for each in failed if each.request_id == headers["x-request-id"]] == ["worker-1"]


@pytest.mark.parametrize(("door", "pause_s"), [("hasty", 60.0), ("brief", 0.2)], ids=["silent", "endless"])
async def test_a_stream_that_pauses_or_lasts_too_long_is_broken_off(setup: Setup, door: str, pause_s: float) -> None:
    async def stream(request: Received) -> None:
        await request.begin_stream()
        while not request.gone.is_set():
            await request.chunk(EVENT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(request.gone.wait(), pause_s)

    setup.first.script = stream
    url = setup.doors[door] + "/v1/chat/completions"

    async def begun() -> tuple[int, aiohttp.ClientResponse]:
        answer = await setup.http.post(url, data=BODY, headers=JSON)
        return answer.status, answer

    _, response = await answered(begun)
    async with response as answer:
        assert await answer.content.readexactly(len(EVENT)) == EVENT
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    await eventually(lambda: all(request.gone.is_set() for request in setup.first.received))
    mine = answer.headers["x-request-id"]
    await eventually(lambda: any(done.request_id == mine for done in setup.events.of(ResponseCompleted)))


@each_way
async def test_when_no_engine_can_be_reached_the_error_has_openais_shape(setup: Setup, door: str) -> None:
    setup.stages.urls = (setup.nobody,)
    status, body, headers = await setup.ask(door)
    assert status == 503
    assert json.loads(body)["error"]["code"] == "engine_failed"
    assert headers["content-type"] == "application/json"
    done = await setup.completed()
    assert (done.outcome, done.status) == ("engine_error", 503)


@each_way
async def test_refusals_by_other_filters_of_envoys_pass_as_they_are_and_no_engine_is_blamed(
    setup: Setup, door: str
) -> None:
    for place in ("before", "behind"):
        status, body, _ = await setup.ask(door, {f"x-refused-{place}": "yes"})
        assert (status, body) == (429, b"fault filter abort")
    done = await setup.completed()
    assert (done.outcome, done.status, done.attempts, done.reason) == ("rejected", 429, (), "fault_filter_abort")
    assert (setup.first.received, setup.events.of(AttemptFailed)) == ([], [])


@each_way
async def test_a_body_without_a_length_that_is_more_than_envoy_holds_is_413(setup: Setup, door: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield BODY[:-1] + b',"user":"'
        for _ in range(20):
            yield b"x" * 2**20
        yield b'"}'

    url = setup.doors[door] + "/v1/chat/completions"
    async with setup.http.post(url, data=pieces(), headers=JSON) as answer:
        document = await answer.json()
    assert (answer.status, document["error"]["code"]) == (413, "body_too_large")
    done = await setup.completed()
    assert (done.outcome, done.status) == ("rejected", 413)


@each_way
@pytest.mark.parametrize(("status", "code"), [(404, "model_not_found"), (429, "saturated"), (503, "stage_unavailable")])
async def test_a_rejection_reaches_the_client_as_it_was_said(setup: Setup, door: str, status: int, code: str) -> None:
    setup.stages.reply = lambda request: Rejection(
        request_id=request.request_id,
        stage="scheduler",
        status=status,
        type="invalid_request_error",
        code=code,
        message="why",
        retry_after_s=3,
        dropped_reason="rejected-saturated",
    )
    told, body, headers = await setup.ask(door, {"x-request-id": "mine"})
    assert (told, json.loads(body)["error"]) == (
        status, {"message": "why", "type": "invalid_request_error", "param": None, "code": code},
    )  # fmt: skip
    assert (headers["retry-after"], headers["x-request-id"]) == ("3", "mine")
    assert headers["x-pointsman-dropped-reason"] == "rejected-saturated"


@each_way
async def test_the_client_gets_the_models_name_that_it_asked_for(setup: Setup, door: str) -> None:
    setup.stages.changes = {"model": "alias", "target": Target(model="llama-8b", pool="llama-8b")}
    _, body, _ = await setup.ask(door)
    assert json.loads(body)["model"] == "alias"

    async def stream(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT + EVENT[:30])
        await request.chunk(EVENT[30:] + DONE)
        await request.chunk(b"")

    setup.first.script = stream
    _, body, _ = await setup.ask(door)
    assert body == EVENT.replace(b"llama-8b", b"alias") * 2 + DONE


@each_way
async def test_a_stream_that_the_engine_breaks_off_is_broken_off_and_completed(setup: Setup, door: str) -> None:
    seen = asyncio.Event()

    async def break_off(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(EVENT)
        await seen.wait()
        request.cut()

    setup.first.script = break_off
    url = setup.doors[door] + "/v1/chat/completions"
    async with setup.http.post(url, data=BODY, headers=JSON) as answer:
        assert await answer.content.readany() == EVENT
        seen.set()
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    assert (await setup.completed()).status == 200


@each_way
async def test_a_client_that_leaves_while_its_request_is_decided_is_forgotten(setup: Setup, door: str) -> None:
    setup.stages.let_go.clear()
    before = setup.stages.abandoned
    asking = asyncio.create_task(setup.ask(door))
    await eventually(lambda: setup.stages.asked)
    asking.cancel()
    await eventually(lambda: setup.stages.abandoned == before + 1)
    done = await setup.completed()
    assert (done.outcome, done.status) == ("client_gone", 499)
    assert setup.first.received == []


def reviewing(mode: str) -> tuple[Stage, ...]:
    """One stage on the way back."""
    use = AnswerUse(mode=mode, content="text", window=4, overlap=2)
    return (Stage(service="guard", answer=use),)


def blocking(review: ResponseReview) -> Verdict:
    """Lets everything pass but the word `secret`."""
    action = "block" if any("secret" in text.text for text in review.texts) else "pass"
    return Verdict(request_id=review.request_id, action=action)


def delta(text: str) -> bytes:
    """An event of a stream."""
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def saying(*texts: str) -> Callable[[Received], Awaitable[None]]:
    """A stream of them."""

    async def script(request: Received) -> None:
        await request.begin_stream()
        for text in texts:
            await request.chunk(delta(text))
        await request.chunk(DONE)
        await request.chunk(b"")

    return script


@each_way
async def test_a_document_is_changed_by_a_stage_before_the_client_has_it(setup: Setup, door: str) -> None:
    document = {"id": "c", "choices": [{"index": 0, "message": {"content": "my secret"}}]}

    def redacting(review: ResponseReview) -> Verdict:
        edits = tuple(TextEdit(part=each.part, text="*") for each in review.texts)
        headers = (HeaderEdit(name="x-checked", value="yes"),)
        return Verdict(request_id=review.request_id, action="replace", texts=edits, headers=headers)

    async def answer(request: Received) -> None:
        await request.answer(json.dumps(document).encode())

    setup.first.script = answer
    setup.stages.changes = {"response": reviewing("buffer")}
    setup.reviewers.say = redacting
    status, body, headers = await setup.ask(door)
    assert (status, headers["x-checked"], int(headers.get("content-length", len(body)))) == (200, "yes", len(body))
    assert json.loads(body)["choices"][0]["message"]["content"] == "*"


@each_way
@pytest.mark.parametrize("mode", ["buffer", "window"])
async def test_a_stream_that_passes_its_stages_is_the_engines(setup: Setup, door: str, mode: str) -> None:
    setup.first.script = saying("some ", "harmless ", "words")
    setup.stages.changes = {"response": reviewing(mode)}
    setup.reviewers.say = blocking
    status, body, _ = await setup.ask(door)
    assert (status, body) == (200, delta("some ") + delta("harmless ") + delta("words") + DONE)
    assert (await setup.completed()).outcome == "ok"


@each_way
async def test_a_stream_that_is_blocked_whole_is_a_403(setup: Setup, door: str) -> None:
    setup.first.script = saying("my ", "secret")
    setup.stages.changes = {"response": reviewing("buffer")}
    setup.reviewers.say = blocking
    status, body, _ = await setup.ask(door)
    assert (status, json.loads(body)["error"]["code"]) == (403, "content_filter")
    assert (await setup.completed()).outcome == "blocked"


@each_way
async def test_a_stream_that_is_blocked_on_its_way_ends_as_filtered(setup: Setup, door: str) -> None:
    setup.first.script = saying("harmless ", "words ", "secret ", "and ", "more ", "of ", "it")
    setup.stages.changes = {"response": reviewing("window")}
    setup.reviewers.say = blocking
    status, body, _ = await setup.ask(door)
    assert status == 200
    assert body.startswith(delta("harmless "))
    assert b"secret" not in body
    assert b"more" not in body
    assert body.endswith(DONE)
    assert b'"finish_reason":"content_filter"' in body
    assert (await setup.completed()).outcome == "blocked"


CHAT = {"model": "big", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
of_kinds = pytest.mark.parametrize("kind", KINDS)


fresh_models = (f"far-model-{number}" for number in itertools.count())


def served_by(kind: str) -> dict[str, Any]:
    """A decision for this provider, and for a model that no test before asked for: five failures in a row stop requests
    to a provider's model for a while."""
    target = Target(model=next(fresh_models), provider=kind)
    return {"model": "big", "target": target, "endpoints": (ChosenEndpoint(worker=kind, url=""),), "scheduler": ""}


@each_way
@of_kinds
@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_is_asked_with_its_credential_in_its_words_and_answers_in_the_clients(
    setup: Setup, door: str, kind: str, stream: bool
) -> None:
    setup.stages.changes = decided = served_by(kind)
    secrets = {"authorization": "Bearer canary-client", "x-user-id": "root", "x-mine": "1"}
    status, body, headers = await setup.ask(door, secrets, json.dumps(CHAT | {"stream": stream}).encode())
    assert status == 200, body
    [asked] = setup.far[kind].asked
    assert asked.body["model"] == decided["target"].model
    assert not {"x-mine", "x-user-id", "x-gateway-destination-endpoint", "x-forwarded-for"} & set(asked.headers)
    assert "canary-client" not in str(asked.headers)
    text = body.decode()
    if stream:
        assert headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == "".join(WORDS)
        assert {event["model"] for event in events} == {"big"}
        assert text.endswith("data: [DONE]\n\n")
    else:
        document = json.loads(text)
        assert (document["model"], document["choices"][0]["message"]["content"]) == ("big", "".join(WORDS))
    done = await setup.completed()
    assert (done.outcome, done.worker, done.stream) == ("ok", kind, stream)
    assert done.usage is not None
    assert [(each.worker, each.outcome) for each in done.attempts] == [(kind, "answered")]


@each_way
@of_kinds
@pytest.mark.parametrize(("status", "told"), [(401, 502), (429, 429), (400, 400), (503, 503)])
async def test_a_providers_error_is_rewritten_as_the_gateways_client_needs_it(
    setup: Setup, door: str, kind: str, status: int, told: int
) -> None:
    setup.stages.changes = served_by(kind)
    setup.far[kind].status = status
    answered, body, _ = await setup.ask(door, None, json.dumps(CHAT).encode())
    assert answered == told, body
    assert json.loads(body)["error"]["message"]
    assert (await setup.completed()).status == told


@each_way
async def test_a_provider_gets_the_key_of_a_session_until_it_refuses_the_field(setup: Setup, door: str) -> None:
    def refuse(document: dict[str, Any]) -> object:
        named = "property 'prompt_cache_key' is unsupported"
        return {"error": {"message": named}} if "prompt_cache_key" in document else None

    setup.stages.changes = {**served_by("openai"), "session": RequestSession(id="s-1")}
    statuses = [(await setup.ask(door, None, json.dumps(CHAT).encode()))[0]]
    setup.far["openai"].refuses = refuse
    statuses += [(await setup.ask(door, None, json.dumps(CHAT).encode()))[0] for _ in range(2)]
    theirs = json.dumps(CHAT | {"prompt_cache_key": "theirs"}).encode()
    statuses.append((await setup.ask(door, None, theirs))[0])
    assert statuses == [200, 422, 200, 200]
    first, second, third, last = [asked.body.get("prompt_cache_key") for asked in setup.far["openai"].asked]
    assert (second, third, last) == (first, None, None)
    assert first is not None


@each_way
@pytest.mark.parametrize(("kind", "told"), [("openai", 502), ("anthropic", 503)], ids=KINDS)
async def test_a_provider_whose_stream_fails_is_reported_as_failed(
    setup: Setup, door: str, kind: str, told: int
) -> None:
    """In full duplex the head waits for the first word, otherwise it is out. `told`: the status that the kind of the
    error has, a `server_error` and an `overloaded_error`."""
    setup.stages.changes = served_by(kind)
    setup.far[kind].breaks = "before"
    status, body, _ = await setup.ask(door, None, json.dumps(CHAT | {"stream": True}).encode())
    assert status == (told if door == "duplex" else 200)
    assert b'"error"' in body
    done = await setup.completed()
    assert (done.outcome, [each.outcome for each in done.attempts]) == ("cut_off", ["failed"])


@each_way
async def test_stages_on_the_way_back_see_a_providers_answer(setup: Setup, door: str) -> None:
    setup.stages.changes = {**served_by("anthropic"), "response": reviewing("buffer")}
    setup.reviewers.say = lambda review: Verdict(request_id=review.request_id, action="block")
    status, body, _ = await setup.ask(door, None, json.dumps(CHAT).encode())
    assert (status, json.loads(body)["error"]["code"]) == (403, "content_filter")
    assert setup.reviewers.asked[0].texts[0].text == "".join(WORDS)


async def test_no_client_can_have_itself_sent_to_a_provider(setup: Setup) -> None:
    """Envoy's routes match the adapter's metadata."""
    forged = {"host": "127.0.0.1:1", "x-pointsman-provider-scheme": "http", "provider_scheme": "http"}
    status, _, _ = await setup.ask("usual", forged)
    assert status == 200
    assert setup.first.received
