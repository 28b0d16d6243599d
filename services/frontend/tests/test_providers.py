"""Requests for models of external providers: translated, paid for with the gateway's key, and passed on to the next
model while the client has nothing yet."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import AttemptFailed, RequestRejected, ResponseCompleted
from pointsman_testing import eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.mock_providers import AWS_KEYS, MockProvider
from pointsman_testing.raw_http import RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CHAT = "/v1/chat/completions"
CANARY = "canary"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "openai": {},
    "anthropic": {},
    "azure": {"api_version": "2024-10-21"},
    "bedrock": {"region": "eu-north-1"},
    "vertex": {"project": "p", "location": "global"},
}
KINDS: tuple[str, ...] = tuple(SETTINGS)


def config(*providers: MockProvider, **changes: object) -> dict[str, object]:
    """The configuration with these providers, each called by its kind and number."""
    found: dict[str, object] = {}
    for number, provider in enumerate(providers, start=1):
        found[f"{provider.kind}-{number}"] = {
            "kind": provider.kind,
            "base_url": provider.url,
            "credential": "env:TEST_PROVIDER_KEY",
            **SETTINGS[provider.kind],
        }
    return {"providers": found, "models": {}, **changes}


def targets(*providers: MockProvider) -> list[Target]:
    """A model at each."""
    return [
        Target(model=f"model-{number}", provider=f"{provider.kind}-{number}")
        for number, provider in enumerate(providers, start=1)
    ]


class World:
    """An edge whose decisions name providers."""

    def __init__(self, edge: EdgeUnderTest, *providers: MockProvider) -> None:
        self.edge = edge
        self.providers = providers
        first, *others = targets(*providers)
        self.goes_to(first, *others)

    def goes_to(self, first: Target, *others: Target) -> None:
        """Where the stages send requests, in order."""
        endpoint = ChosenEndpoint(worker=first.provider or "", url="", target=first)
        self.edge.stages.changes = {
            "model": "large",
            "target": first,
            "endpoints": (endpoint,),
            "alternatives": others,
            "scheduler": "",
        }

    async def ask(self, path: str = CHAT, **fields: object) -> RawResponse:
        prompt = {} if "input" in fields else {"messages": [{"role": "user", "content": f"{CANARY}-prompt"}]}
        body = {"model": "large", **prompt, **fields}
        return await raw_request(self.edge.url, post(path, json.dumps(body).encode()))

    async def completed(self) -> ResponseCompleted:
        await eventually(lambda: self.edge.events.of(ResponseCompleted))
        return self.edge.events.of(ResponseCompleted)[-1]


async def start(
    stack: AsyncExitStack, start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, *kinds: str, key: str = "canary-key"
) -> World:
    monkeypatch.setenv("TEST_PROVIDER_KEY", key)
    providers = [await stack.enter_async_context(MockProvider(kind)) for kind in kinds]
    return World(await start_edge(config=config(*providers)), *providers)


def text_of(response: RawResponse, *, stream: bool) -> str:
    if not stream:
        return str(json.loads(response.body)["choices"][0]["message"]["content"])
    events = [line.removeprefix(b"data: ") for line in response.body.split(b"\n\n") if line]
    assert events[-1] == b"[DONE]"
    chunks = [cast("dict[str, Any]", json.loads(event)) for event in events[:-1]]
    assert {chunk["model"] for chunk in chunks} == {"large"}
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


@pytest.mark.requirement("S0-66", "S0-67", "S0-68", "S0-69")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_of_provider_answers_openais_chat(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, kind: str, stream: bool
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, kind)
        response = await world.ask(stream=stream)
        assert response.status == 200, response.body
        assert text_of(response, stream=stream) == "Hello from far"
        if not stream:
            assert json.loads(response.body)["model"] == "large"
        completed = await world.completed()
    assert (completed.outcome, completed.worker, completed.pool) == ("ok", f"{kind}-1", "-")
    assert completed.target == Target(model="model-1", provider=f"{kind}-1")
    assert [attempt.outcome for attempt in completed.attempts] == ["answered"]
    if not stream or kind in ("anthropic", "bedrock"):
        assert completed.usage is not None
        assert (completed.usage.prompt_tokens, completed.usage.completion_tokens) == (5, 3)
    asked = world.providers[0].asked[0]
    assert "cookie" not in asked.headers
    assert not [name for name in asked.headers if name.startswith(("x-pointsman", "x-gateway", "traceparent"))]


@pytest.mark.requirement("S0-67")
@pytest.mark.parametrize(
    "key",
    [
        json.dumps({"aws_access_key_id": AWS_KEYS[0], "aws_secret_access_key": AWS_KEYS[1]}),
        f"[default]\naws_access_key_id = {AWS_KEYS[0]}\naws_secret_access_key = {AWS_KEYS[1]}\n",
    ],
    ids=["json", "ini"],
)
async def test_keys_of_aws_sign_the_request(
    start_edge: StartEdge, tmp_path_factory: pytest.TempPathFactory, key: str
) -> None:
    file = tmp_path_factory.mktemp("keys") / "aws"
    file.write_text(key)
    async with MockProvider("bedrock") as far:
        settings = {"kind": "bedrock", "base_url": far.url, "region": "eu-north-1", "credential": f"file:{file}"}
        world = World(await start_edge(config={"providers": {"bedrock-1": settings}, "models": {}}), far)
        world.goes_to(Target(model="eu.far.model-v1:0", provider="bedrock-1"))
        for stream in (False, True):
            assert (await world.ask(stream=stream)).status == 200
    assert far.asked[0].path == "/model/eu.far.model-v1%3A0/converse"


async def test_the_clients_own_key_stays_here(start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        monkeypatch.setenv("TEST_PROVIDER_KEY", "canary-key")
        far = await stack.enter_async_context(MockProvider("openai"))
        world = World(await start_edge(config=config(far), forward_credentials=True), far)
        body = json.dumps({"model": "large", "messages": []}).encode()
        async with raw_connection(world.edge.url) as client:
            await client.send(post(CHAT, body, "authorization: Bearer clients-key", "cookie: clients"))
            assert (await client.response()).status == 200
        assert far.asked[0].headers["authorization"] == "Bearer canary-key"
        assert "clients" not in str(far.asked)


async def test_fields_for_engines_of_ours_alone_do_not_leave(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "anthropic")
        edits = (BodyEdit(field="cache_salt", value=f"{CANARY}-tenant"), BodyEdit(field="temperature", value=0.5))
        world.edge.stages.changes["body"] = edits
        assert (await world.ask()).status == 200
        body = world.providers[0].asked[0].body
    assert body["temperature"] == 0.5
    assert "cache_salt" not in body


async def test_embeddings_and_anthropics_own_api_pass(start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai", "anthropic")
        openai, anthropic = targets(*world.providers)
        world.goes_to(openai)
        vectors = await world.ask("/v1/embeddings", input="x")
        assert json.loads(vectors.body)["data"][0]["embedding"] == [0.25, -0.5]
        world.goes_to(anthropic)
        message = json.loads((await world.ask("/v1/messages", max_tokens=5)).body)
        assert (message["model"], message["content"][0]["text"]) == ("large", "Hello from far")
        refused = await world.ask("/v1/embeddings", input="x")
    assert refused.status == 400
    assert json.loads(refused.body)["error"]["code"] == "unsupported_api"


@pytest.mark.requirement("S0-70")
@pytest.mark.parametrize("status", [401, 429, 500, 503, 529])
async def test_a_provider_that_fails_is_followed_by_the_next_one(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai", "anthropic")
        world.providers[0].status = status
        world.providers[0].headers = {"retry-after": "30"}
        response = await world.ask()
        completed = await world.completed()
    assert text_of(response, stream=False) == "Hello from far"
    first, second = completed.attempts
    assert first.target == Target(model="model-1", provider="openai-1")
    assert (first.worker, first.outcome, first.status) == (
        "openai-1",
        "limited" if status in (429, 529) else "failed",
        status,
    )
    assert first.reason == f"answered {status}" + (": provider_credential" if status == 401 else "")
    assert (first.limited_until_ms is not None) == (status in (429, 503, 529))
    assert (second.worker, second.outcome) == ("anthropic-2", "answered")
    assert completed.target == second.target == Target(model="model-2", provider="anthropic-2")
    assert [event.next_worker for event in world.edge.events.of(AttemptFailed)] == ["anthropic-2"]


async def test_a_provider_that_asked_for_a_pause_is_not_asked_for_a_model_by_name_either(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai")
        provider = world.providers[0]
        provider.status, provider.headers = 429, {"retry-after": "30"}
        responses = [await world.ask() for _ in range(3)]
        assert len(provider.asked) == 1
        completed = await world.completed()
    assert [response.status for response in responses] == [429] * 3
    assert all(0 < int(response.header("retry-after") or 0) <= 30 for response in responses)
    assert completed.attempts[-1].outcome == "limited"
    assert completed.attempts[-1].status is None


async def test_a_request_that_deserves_400_gets_it_while_its_provider_pauses(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "anthropic")
        provider = world.providers[0]
        provider.status, provider.headers = 429, {"retry-after": "30"}
        assert (await world.ask()).status == 429
        wrong = await world.ask(seed=7)
        assert (wrong.status, json.loads(wrong.body)["error"]["param"]) == (400, "seed")
        assert (await world.ask()).status == 429
    assert len(provider.asked) == 1


async def test_a_provider_that_fails_again_and_again_is_not_asked_for_a_while(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai")
        provider = world.providers[0]
        provider.status = 500
        statuses = [(await world.ask()).status for _ in range(7)]
    assert statuses == [502] * 5 + [503] * 2
    assert len(provider.asked) == 5


@pytest.mark.requirement("S0-70")
@pytest.mark.parametrize("kind", ["openai", "anthropic", "bedrock"])
async def test_a_stream_that_fails_before_its_first_word_is_answered_by_the_next_one(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, kind, "openai")
        world.providers[0].breaks = "before"
        assert text_of(await world.ask(stream=True), stream=True) == "Hello from far"
        first = "limited" if kind == "bedrock" else "failed"
        assert [attempt.outcome for attempt in (await world.completed()).attempts] == [first, "answered"]


@pytest.mark.parametrize("kind", ["openai", "anthropic", "bedrock"])
async def test_a_stream_that_breaks_off_ends_with_words_and_no_other_model_is_asked(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, kind, "openai")
        world.providers[0].breaks = "within"
        response = await world.ask(stream=True)
        completed = await world.completed()
    assert b"Hello" in response.body
    assert b'"code":"engine_cut_off"' in response.body
    assert completed.outcome == "cut_off"
    assert not world.providers[1].asked


async def test_a_provider_that_is_not_there_is_followed_by_an_engine_of_ours(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai")
        engine = await stack.enter_async_context(ScriptedEngine())
        worker = WorkerView(worker="engine-1", url=engine.url, models=("llama-8b",), state="serving")
        world.edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(worker,)))
        world.goes_to(
            targets(*world.providers)[0], Target(model="llama-8b", pool="llama-8b", lora="llama-8b", base="raw")
        )
        world.edge.stages.changes["headers"] = (
            HeaderEdit(name="x-model", value="model-1", tells="model"),
            HeaderEdit(name="x-base", value="model-1", tells="base_model"),
            HeaderEdit(name="x-other", value="1"),
            HeaderEdit(name="x-prefiller-host-port", value="10.0.0.1:80"),
            HeaderEdit(name="X-Data-Parallel-Rank", value="3"),
            HeaderEdit(name="x-gateway-destination-endpoint", value="10.0.0.2:80"),
        )
        await world.providers[0].__aexit__()
        response = await world.ask()
        completed = await world.completed()
    assert json.loads(response.body)["model"] == "large"
    (seen,) = engine.received
    assert json.loads(seen.body)["model"] == "llama-8b"
    assert [seen.header(name) for name in ("x-model", "x-base", "x-other")] == ["llama-8b", "raw", "1"]
    orders = ("x-prefiller-host-port", "x-data-parallel-rank", "x-gateway-destination-endpoint")
    assert [seen.header(name) for name in orders] == [None, None, None]
    assert [(attempt.worker, attempt.outcome) for attempt in completed.attempts] == [
        ("openai-1", "refused"),
        ("engine-1", "answered"),
    ]


@pytest.mark.requirement("S0-70")
async def test_engines_of_ours_that_fail_are_followed_by_a_provider(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(request: Received) -> None:
        await request.answer(b"{}", status=503)

    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "bedrock")
        engine = await stack.enter_async_context(ScriptedEngine(fail))
        world.edge.stages.changes = {
            "model": "large",
            "endpoints": (ChosenEndpoint(worker="engine-1", url=engine.url),),
            "alternatives": tuple(targets(*world.providers)),
        }
        response = await world.ask()
        completed = await world.completed()
    assert text_of(response, stream=False) == "Hello from far"
    assert [attempt.worker for attempt in completed.attempts] == ["engine-1", "bedrock-1"]
    assert completed.attempts[0].target == Target(model="llama-8b", pool="llama-8b")
    assert completed.pool == "llama-8b"  # whose scheduler keeps the reservation


@pytest.mark.parametrize(("status", "code"), [(400, "c"), (404, "c"), (413, "c")])
async def test_a_wrong_request_gets_the_providers_words_and_is_not_sent_elsewhere(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai", "anthropic")
        world.providers[0].status = status
        response = await world.ask()
        completed = await world.completed()
    error = json.loads(response.body)["error"]
    assert (response.status, error["message"], error["code"]) == (status, "Words of the provider.", code)
    assert (completed.outcome, completed.status) == ("rejected", status)
    # Those may quote the prompt: they are for the client alone.
    assert completed.reason == f"The provider 'openai-1' refused the request with status {status}."
    assert not world.providers[1].asked


@pytest.mark.parametrize(("status", "seen"), [(429, 429), (401, 502), (500, 502), (503, 503), (529, 503), (408, 504)])
async def test_when_no_provider_answers_the_client_gets_the_status_that_is_right_for_it(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, status: int, seen: int
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "anthropic")
        world.providers[0].status = status
        world.providers[0].headers = {"retry-after": "12"}
        response = await world.ask()
    assert response.status == seen
    assert "Words of the provider" not in response.body.decode()
    assert response.header("retry-after") == ("12" if seen in (429, 503) else None)


async def test_a_field_that_a_fallback_lacks_is_not_the_reason_of_the_failure(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai", "anthropic")
        world.providers[0].status = 503
        response = await world.ask(seed=7)
        completed = await world.completed()
        assert response.status == 503
        assert [attempt.outcome for attempt in completed.attempts] == ["failed", "unsupported"]
        world.goes_to(targets(*world.providers)[1])
        alone = await world.ask(seed=7)
    assert alone.status == 400
    assert json.loads(alone.body)["error"]["param"] == "seed"


async def test_a_client_that_hangs_up_ends_the_providers_work(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "anthropic")
        far = world.providers[0]
        far.hold()
        body = json.dumps({"model": "large", "stream": True, "messages": [{"role": "user", "content": "x"}]})
        async with raw_connection(world.edge.url) as client:
            await client.send(post(CHAT, body.encode()))
            await client.reader.readuntil(b"Hello")
        await eventually(far.gone.is_set)
        assert (await world.completed()).outcome == "client_gone"


async def test_an_answer_is_read_to_its_end_where_the_provider_bills_it_anyway(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        monkeypatch.setenv("TEST_PROVIDER_KEY", "canary-key")
        far = await stack.enter_async_context(MockProvider("anthropic"))
        settings = cast("dict[str, dict[str, dict[str, object]]]", config(far))
        settings["providers"]["anthropic-1"]["on_disconnect"] = "drain"
        world = World(await start_edge(config=settings), far)
        far.hold()
        body = json.dumps({"model": "large", "stream": True, "messages": [{"role": "user", "content": "x"}]})
        async with raw_connection(world.edge.url) as client:
            await client.send(post(CHAT, body.encode()))
            await client.reader.readuntil(b"Hello")
        far.release()
        completed = await world.completed()
        assert not far.gone.is_set()
    assert completed.outcome == "client_gone"
    assert completed.usage is not None
    assert (completed.usage.completion_tokens, completed.usage.estimated) == (3, False)


@pytest.mark.requirement("S0-53")
async def test_limits_that_a_provider_tells_reach_the_event(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        world = await start(stack, start_edge, monkeypatch, "openai")
        world.providers[0].headers = {"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "4"}
        response = await world.ask()
        assert response.header("x-ratelimit-remaining-requests") is None
        assert (await world.completed()).attempts[0].remaining == 0.4


@pytest.mark.requirement("S0-67", "PRIVACY-1")
async def test_a_secret_is_in_no_event_log_or_error_and_a_missing_one_is_said_by_its_reference(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        with caplog.at_level(logging.DEBUG):
            world = await start(stack, start_edge, monkeypatch, "openai", "bedrock", key="canary-wrong-key")
            refused = await world.ask()
            monkeypatch.delenv("TEST_PROVIDER_KEY")
            missing = await world.ask()
            await start_edge(config=config(*world.providers))
            await eventually(lambda: "provider_credential_missing" in caplog.text)
        assert (refused.status, missing.status) == (502, 502)
        assert json.loads(missing.body)["error"]["code"] == "provider_credential_missing"
        logged = "\n".join(str(vars(record)) for record in caplog.records)
        assert "env:TEST_PROVIDER_KEY is empty or missing" in logged
        told = "\n".join(
            (logged, str(refused.body), str(missing.body), *(str(each) for each in world.edge.events.sent))
        )
        assert CANARY not in told


async def test_a_provider_that_this_revision_does_not_have_is_an_error(start_edge: StartEdge) -> None:
    edge = await start_edge(config={"providers": {}, "models": {}})
    target = Target(model="m", provider="gone")
    edge.stages.changes = {"target": target, "endpoints": (ChosenEndpoint(worker="gone", url="", target=target),)}
    response = await raw_request(edge.url, post(CHAT, b'{"model":"m","messages":[]}'))
    assert response.status == 502
    assert not edge.events.of(RequestRejected)


def test_an_edge_without_providers_imports_none_of_their_libraries() -> None:
    dear = "[m for m in ('botocore', 'google.auth', 'urllib3') if m in sys.modules]"
    code = f"import sys, pointsman_frontend.main; print({dear})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
