"""The parts of a client's request that a provider gets, and requests that it refuses for no fault of the client's."""

import itertools
import json
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from pointsman_contracts.journey import BodyEdit, Target
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import Attempt, ResponseCompleted
from pointsman_contracts.session import RequestSession
from pointsman_core.config import load
from pointsman_edge.credentials.provider_keys import ProviderKeys
from pointsman_edge.sending.cache_key import session_key
from pointsman_providers.resolve import resolve
from pointsman_testing import eventually
from pointsman_testing.agent_forms import AgentForm, claude_code, codex
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.mock_providers import MockProvider
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CANARY = "canary-7730"
CHAT = "/v1/chat/completions"
UNASKED = BodyEdit(field="stream_options", value={"include_usage": True}, unasked=True)


async def start(
    stack: AsyncExitStack, start_edge: StartEdge, kind: str, settings: dict[str, object], *edits: BodyEdit
) -> tuple[EdgeUnderTest, MockProvider]:
    """An edge whose decisions name one provider, with these settings."""
    provider = await stack.enter_async_context(MockProvider(kind))
    fields = {"kind": kind, "base_url": provider.url, "credential": "env:TEST_PROVIDER_KEY", **settings}
    edge = await start_edge(config={"providers": {"far": fields}, "models": {}})
    target = Target(model="model-1", provider="far")
    edge.stages.changes = {
        "model": "large",
        "target": target,
        "endpoints": (ChosenEndpoint(worker="far", url="", target=target),),
        "alternatives": (),
        "scheduler": "",
        "body": edits,
    }
    return edge, provider


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PROVIDER_KEY", "canary-key")


async def send(edge: EdgeUnderTest, path: str, body: dict[str, Any], headers: dict[str, str]) -> RawResponse:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "content-type")
    data = json.dumps(body).encode()
    head, _, rest = post(path, data).partition(b"\r\n")
    return await raw_request(edge.url, head + b"\r\n" + lines.encode() + rest)


async def attempts(edge: EdgeUnderTest) -> list[str]:
    await eventually(lambda: edge.events.of(ResponseCompleted))
    return [attempt.outcome for attempt in edge.events.of(ResponseCompleted)[-1].attempts]


@pytest.mark.parametrize(
    ("kind", "form", "names"),
    [
        (
            "anthropic",
            claude_code("large"),
            ("anthropic-version", "x-app", "x-claude-code-session-id", "x-client-request-id"),
        ),
        (
            "openai",
            codex("large"),
            (
                "originator",
                "session-id",
                "thread-id",
                "x-client-request-id",
                "x-codex-turn-metadata",
                "x-codex-window-id",
            ),
        ),
    ],
    ids=["claude-code", "codex"],
)
async def test_an_agents_request_reaches_its_own_provider_whole(
    start_edge: StartEdge, kind: str, form: AgentForm, names: tuple[str, ...]
) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, kind, {})
        # Codex's own member isn't in the SDK.
        provider.lenient = kind == "openai"
        credentials = {"authorization": f"Bearer {CANARY}", "cookie": CANARY, "x-goog-api-key": CANARY}
        path = f"{form.path}{'&' if '?' in form.path else '?'}key={CANARY}"
        answer = await send(edge, path, form.body, {**form.headers, **credentials})
        assert answer.status == 200, answer.body
        assert provider.refused == []
        asked = provider.asked[0]
    assert asked.body == {**form.body, "model": "model-1"}
    assert {name: asked.headers.get(name) for name in names} == {name: form.headers[name] for name in names}
    assert asked.path == form.path
    assert CANARY not in str(asked)
    assert not [
        name for name in asked.headers if name.startswith("x-stainless") or (name == "user-agent" and "/" in name)
    ]
    if kind == "anthropic":
        betas = asked.headers["anthropic-beta"].split(",")
        assert "context-management-2025-06-27" in betas
        assert not [beta for beta in betas if beta.startswith("oauth")]


async def test_the_operators_betas_and_the_clients_add_up(start_edge: StartEdge) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "anthropic", {"headers": {"Anthropic-Beta": "ours"}})
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}]}
        assert (await send(edge, CHAT, body, {"anthropic-beta": "theirs"})).status == 200
    assert provider.asked[0].headers["anthropic-beta"] == "ours,theirs"


def refuses_options(document: dict[str, Any]) -> object:
    """As a service without `stream_options`, in FastAPI's words, which have no message."""
    if "stream_options" not in document:
        return None
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs"}]}


async def test_a_field_that_the_gateway_added_is_left_out_once_a_provider_refuses_it(start_edge: StartEdge) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {}, UNASKED)
        provider.refuses = refuses_options
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}], "stream": True}
        first = await send(edge, CHAT, body, {"idempotency-key": "i-1"})
        assert (first.status, b"Hello" in first.body) == (200, True)
        assert await attempts(edge) == ["failed", "answered"]
        assert ["idempotency-key" in asked.headers for asked in provider.asked] == [True, False]
        assert (await send(edge, CHAT, body, {})).status == 200
    assert ["stream_options" in asked.body for asked in provider.asked] == [True, False, False]


async def test_a_provider_that_is_said_to_refuse_a_field_never_gets_it(start_edge: StartEdge) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {"omit_added": ["stream_options"]}, UNASKED)
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}], "stream": True}
        assert (await send(edge, CHAT, body, {})).status == 200
    assert ["stream_options" in asked.body for asked in provider.asked] == [False]


def refuses_hint(document: dict[str, Any]) -> object:
    """In Groq's words."""
    if "prompt_cache_key" not in document:
        return None
    return {"error": {"message": "property 'prompt_cache_key' is unsupported", "type": "invalid_request_error"}}


async def test_a_hint_of_the_clients_is_left_out_once_a_provider_refuses_it(start_edge: StartEdge) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {})
        provider.refuses = refuses_hint
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}], "prompt_cache_key": "thread-1"}
        assert (await send(edge, CHAT, body, {})).status == 200
        assert await attempts(edge) == ["failed", "answered"]
        assert (await send(edge, CHAT, body, {})).status == 200
    assert [asked.body.get("prompt_cache_key") for asked in provider.asked] == ["thread-1", None, None]


async def test_a_clients_bad_hint_takes_no_key_from_other_sessions(start_edge: StartEdge) -> None:
    def refuse(document: dict[str, Any]) -> object:
        if len(document.get("prompt_cache_key", "")) <= 64:
            return None
        return {"error": {"message": "Invalid 'prompt_cache_key': string too long. Expected at most 64."}}

    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {"prompt_cache_key": True})
        edge.stages.changes["session"] = RequestSession(id="s-1")
        provider.refuses = refuse
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}]}
        for sent in (body, {**body, "prompt_cache_key": "k" * 65}, body):
            assert (await send(edge, CHAT, sent, {})).status == 200
    first, long, without, last = [asked.body.get("prompt_cache_key") for asked in provider.asked]
    assert (first, long, without, last) == (first, "k" * 65, None, first)
    assert first is not None


KEYS = ("env:TEST_PROVIDER_KEY", "env:TEST_OTHER_KEY")
OTHER = "canary-other"


def limited(attempt: Attempt) -> bool:
    return attempt.limited_until_ms is not None


def keys_asked(provider: MockProvider) -> list[str]:
    return [asked.headers["authorization"].removeprefix("Bearer ") for asked in provider.asked]


async def with_two_keys(
    stack: AsyncExitStack, start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, other: str = OTHER
) -> tuple[EdgeUnderTest, MockProvider, dict[str, Any]]:
    """An edge whose provider has two credentials, and a request of a session that goes with `other` first."""
    monkeypatch.setenv("TEST_OTHER_KEY", other)
    edge, provider = await start(stack, start_edge, "openai", {"credential": list(KEYS)})
    found = resolve(load({"providers": {"far": {"kind": "openai", "credential": list(KEYS)}}}))["far"]
    names = (f"s-{number}" for number in itertools.count())
    chosen = (
        name
        for name in names
        if ProviderKeys().choose_key(found, "model-1", session_key(RequestSession(id=name), None), 0.0).credential
        == KEYS[1]
    )
    edge.stages.changes["session"] = RequestSession(id=next(chosen))
    return edge, provider, {"model": "large", "messages": [{"role": "user", "content": "x"}]}


async def test_a_request_goes_on_with_another_credential_where_the_limit_of_one_is_reached(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        edge, provider, body = await with_two_keys(stack, start_edge, monkeypatch)
        provider.limited[OTHER] = {"retry-after": "30"}
        for _ in range(3):
            assert (await send(edge, CHAT, body, {})).status == 200
        await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 3)
    assert keys_asked(provider) == [OTHER, "canary-key", "canary-key", "canary-key"]
    first, *_ = edge.events.of(ResponseCompleted)
    assert [attempt.outcome for attempt in first.attempts] == ["limited", "answered"]
    assert "env:TEST_OTHER_KEY" in first.attempts[0].reason
    # The provider as a whole has asked for no pause.
    assert not [attempt for each in edge.events.of(ResponseCompleted) for attempt in each.attempts if limited(attempt)]
    assert OTHER not in str(edge.events.of(ResponseCompleted))


@pytest.mark.parametrize("secret", ["canary-revoked", ""])
async def test_a_credential_that_is_revoked_or_missing_fails_no_request(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    async with AsyncExitStack() as stack:
        edge, provider, body = await with_two_keys(stack, start_edge, monkeypatch, secret)
        for _ in range(3):
            assert (await send(edge, CHAT, body, {})).status == 200
    assert keys_asked(provider) == ([secret] if secret else []) + ["canary-key"] * 3


async def test_a_client_is_asked_to_wait_until_the_first_credential_is_free(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        edge, provider, body = await with_two_keys(stack, start_edge, monkeypatch)
        provider.limited |= {OTHER: {"retry-after": "300"}, "canary-key": {"retry-after": "30"}}
        answers = [await send(edge, CHAT, body, {}) for _ in range(2)]
        await eventually(lambda: len(edge.events.of(ResponseCompleted)) == 2)
    assert [answer.status for answer in answers] == [429, 429]
    assert all(25 <= int(answer.header("retry-after") or 0) <= 30 for answer in answers)
    assert keys_asked(provider) == [OTHER, "canary-key"]
    # This is the pause of the provider as a whole.
    told = [[limited(attempt) for attempt in each.attempts] for each in edge.events.of(ResponseCompleted)]
    assert told == [[False, False, True], [True]]


@pytest.mark.parametrize(
    ("settings", "session", "own", "expected"),
    [
        ({"prompt_cache_key": True}, "s-1", None, "made"),
        ({"prompt_cache_key": True}, "s-1", "theirs", "theirs"),
        ({"prompt_cache_key": True}, None, None, None),
        ({"prompt_cache_key": True, "omit_added": ["prompt_cache_key"]}, "s-1", None, None),
        ({"prompt_cache_key": False}, "s-1", None, None),
        ({}, "s-1", None, None),
    ],
)
async def test_a_provider_gets_the_key_of_a_session_where_it_takes_one_and_the_client_sent_none(
    start_edge: StartEdge, settings: dict[str, object], session: str | None, own: str | None, expected: str | None
) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", settings)
        edge.stages.changes["session"] = None if session is None else RequestSession(id=session)
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}]}
        sent = body if own is None else {**body, "prompt_cache_key": own}
        assert (await send(edge, CHAT, sent, {})).status == 200
    key = provider.asked[0].body.get("prompt_cache_key")
    assert session is None or session not in str(key)
    assert ("made" if key and len(key) == 32 else key) == expected
    assert provider.refused == []


async def test_the_clients_own_mistake_is_the_clients_and_teaches_nothing(start_edge: StartEdge) -> None:
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {}, UNASKED)
        body = {"model": "large", "messages": [{"role": "user", "content": "x"}], "stream": True}
        provider.refuses = lambda _: {"error": {"message": "temperature is wrong", "param": "temperature"}}
        refused = await send(edge, CHAT, body, {})
        assert (refused.status, b"temperature is wrong" in refused.body) == (422, True)
        provider.refuses = lambda _: None
        assert (await send(edge, CHAT, body, {})).status == 200
        assert "stream_options" in provider.asked[-1].body
        provider.refuses = lambda _: {"error": {"message": "temperature is wrong", "param": "temperature"}}
        before = len(provider.asked)
        assert (await send(edge, CHAT, body, {})).status == 422
    # It takes the field, as it has shown: nothing else is tried.
    assert len(provider.asked) == before + 1


async def test_thinking_that_another_model_signed_is_left_out_once_anthropic_refuses_it(start_edge: StartEdge) -> None:
    def refuse(document: dict[str, Any]) -> object:
        if '"thinking"' not in json.dumps(document["messages"]):
            return None
        return {"type": "error", "error": {"message": "messages.1.content.0: Invalid `signature` in `thinking` block"}}

    thought = {"type": "thinking", "thinking": "Hm.", "signature": "of-vllm"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "y"},
    ]
    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "anthropic", {})
        provider.refuses = refuse
        answer = await send(edge, "/v1/messages", {"model": "large", "max_tokens": 5, "messages": messages}, {})
        assert answer.status == 200, answer.body
    assert provider.asked[1].body["messages"][1]["content"] == [{"type": "text", "text": "Yes."}]


@pytest.mark.parametrize(
    ("message", "repaired"),
    [
        ("'messages.1': property 'reasoning_content' is unsupported", {"role": "assistant", "content": "Yes."}),
        (
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
            {"role": "assistant", "content": "Yes.", "reasoning_content": "(not kept)"},
        ),
    ],
)
async def test_reasoning_is_left_out_or_marked_as_lost_where_a_service_says_so(
    start_edge: StartEdge, message: str, repaired: dict[str, object]
) -> None:
    missing = "missing" in message
    said = {"role": "assistant", "content": "Yes.", **({} if missing else {"reasoning_content": "Hm."})}

    def refuse(document: dict[str, Any]) -> object:
        there = "reasoning_content" in document["messages"][1]
        return {"error": {"message": message}} if there != missing else None

    async with AsyncExitStack() as stack:
        edge, provider = await start(stack, start_edge, "openai", {})
        provider.lenient, provider.refuses = True, refuse
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "x"}, cast("dict[str, Any]", said), {"role": "user", "content": "y"},
        ]  # fmt: skip
        answer = await send(edge, CHAT, {"model": "large", "messages": messages}, {})
        assert answer.status == 200, answer.body
    assert provider.asked[1].body["messages"][1] == repaired


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", "sent invalid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", "broke off within its answer"),
    ],
)
async def test_an_operator_reads_how_a_providers_answer_broke(start_edge: StartEdge, sent: bytes, reason: str) -> None:
    async def answer(request: Received) -> None:
        await request.write(sent)
        request.writer.close()

    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(ScriptedEngine(answer))
        edge, _ = await start(stack, start_edge, "openai", {"base_url": service.url})
        body = {"model": "large", "messages": [{"role": "user", "content": CANARY}]}
        assert (await send(edge, CHAT, body, {})).status == 502
    await eventually(lambda: edge.events.of(ResponseCompleted))
    (attempt,) = edge.events.of(ResponseCompleted)[-1].attempts
    assert attempt.reason.startswith(reason)
