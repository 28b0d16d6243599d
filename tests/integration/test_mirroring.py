"""Copies of requests for another model, with real processes: what mirrors elsewhere got wrong is right here."""

import hashlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from pointsman_contracts.mirroring import Likeness, MirrorCompared
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.observer import observing
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

StartEnvoy = Callable[..., Awaitable[str]]

OWN: Final = "llama-3.1-8b"
LAB: Final = "lab-8b"
LOOPED: Final = "sql-lora"
SECRET: Final = "ghp_" + "aB3dE5fG7hI9jK1lM2nO4pQ6rS8tU0vW2xY4"
JSON: Final = {"content-type": "application/json"}
CHAT: Final = "/v1/chat/completions"
USAGE: Final = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
COMPLETION: Final = {"id": "c", "object": "text_completion", "model": "m", "usage": USAGE} | {
    "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]
}
MESSAGE: Final = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"} | {
    "content": [{"type": "text", "text": "Hello"}],
    "usage": {"input_tokens": 5, "output_tokens": 2},
}
RESPONSE: Final = {"id": "resp_1", "object": "response", "model": "m", "status": "completed"} | {
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}],
    "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
}
STREAM: Final = (
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}\n\n'
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
USED: Final = (
    b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
)
CASES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.25},
    "/v1/completions": {"prompt": "Hi", "temperature": 0.25},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 0.25},
    "/v1/responses": {"input": "Hi", "temperature": 0.25},
}


def _engine(model: str) -> FakeEngine:
    engine = FakeEngine(models={"data": [{"id": model, "max_model_len": 8_000_000}]})
    for path, document in (("/v1/completions", COMPLETION), ("/v1/messages", MESSAGE), ("/v1/responses", RESPONSE)):
        engine.pages[path] = _answering(document)
    engine.pages[CHAT] = _chat
    return engine


def _answering(document: dict[str, Any]) -> Any:
    async def answer(request: Received) -> None:
        await request.answer(json.dumps(document).encode())

    return answer


async def _chat(request: Received) -> None:
    body: dict[str, Any] = json.loads(request.body)
    if not body.get("stream"):
        await request.answer(ANSWER)
        return
    await request.begin_stream()
    asked = b'"include_usage":true' in request.body.replace(b" ", b"")
    await request.chunk(STREAM + (USED if asked else b"") + b"data: [DONE]\n\n")
    await request.chunk(b"")


class World:
    """A gateway with an engine of its own, and one whose model answers copies."""

    def __init__(
        self, stack: Stack, own: FakeEngine, lab: FakeEngine, relay: ScriptedEngine, http: aiohttp.ClientSession
    ) -> None:
        self.stack = stack
        self.own = own
        self.lab = lab
        self.relay = relay
        self.relayed: list[str] = []
        """Ids of requests that came back by the relay."""
        relay.script = self._pass_on
        self.http = http
        self.compared: list[MirrorCompared] = []
        self.completed: list[ResponseCompleted] = []
        self.asked = 0

    async def ask(self, path: str = CHAT, key: str = "acme", **fields: Any) -> tuple[str, int, bytes]:
        """The request's id; status and body of its answer."""
        self.asked += 1
        body = {"model": OWN, **CASES[path], **fields}
        headers = {"authorization": f"Bearer {key}", "x-request-id": f"ask-{self.asked}", **JSON}
        data = io.BytesIO(json.dumps(body).encode())
        async with self.http.post(f"{self.stack.door}{path}", data=data, headers=headers) as answer:
            return answer.headers["x-request-id"], answer.status, await answer.read()

    async def _pass_on(self, request: Received) -> None:
        """As a provider that is this gateway, behind a proxy."""
        own = {"authorization": "Bearer acme", **JSON}
        headers = {name: value for name, value in request.headers if name.startswith("x-")} | own
        async with self.http.post(f"{self.stack.door}{CHAT}", data=request.body, headers=headers) as answer:
            self.relayed.append(answer.headers["x-request-id"])
            await request.answer(await answer.read(), status=answer.status)

    async def comparison(self, request_id: str) -> MirrorCompared:
        return await eventually(lambda: next((e for e in self.compared if e.request_id == request_id), None))

    async def end(self, request_id: str) -> ResponseCompleted:
        return await eventually(lambda: next((e for e in self.completed if e.request_id == request_id), None))

    def copies(self) -> list[Received]:
        """What the candidate got."""
        return [request for request in self.lab.received if request.method == "POST"]

    async def skipped(self, reason: str, mirror: str = "lab") -> float:
        """How many requests weren't copied by a mirror for this reason."""
        async with self.http.get(f"{self.stack.services['mirror'][0].http_url}/metrics") as answer:
            text = await answer.text()
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f'pointsman_mirror_skipped_total{{mirror="{mirror}",reason="{reason}"}}')
        )


def _key(tenant: str) -> dict[str, str]:
    return {"id": tenant, "sha256": hashlib.sha256(tenant.encode()).hexdigest(), "tenant": tenant}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory) -> AsyncIterator[World]:
    async with AsyncExitStack() as around:
        own = await around.enter_async_context(_engine(OWN))
        lab = await around.enter_async_context(_engine(LAB))
        relay = await around.enter_async_context(ScriptedEngine())
        changes: dict[str, Any] = {
            "pools": {
                "llama-8b": {"models": [OWN, "sql-lora"], "discovery": "static", "engines": [own.url]},
                "lab": {"models": [LAB], "discovery": "static", "engines": [lab.url]},
            },
            "models": {
                OWN: {"pool": "llama-8b", "cost": {"input": 1, "output": 2}},
                LAB: {"pool": "lab", "cost": {"input": 3, "output": 4}},
                "around": {"provider": "itself", "served_as": LOOPED},
            },
            "providers": {"itself": {"kind": "openai", "base_url": f"{relay.url}/v1", "client_headers": []}},
            "selectors": {},
            "profile-picker": {
                "use": "rules",
                "rules": [{"when": f'model == "{LOOPED}"', "profile": "looped"}],
                "default": "standard",
            },
            "preprocessing": [{"use": "api-key-auth", "keys": [_key("acme")]}],
            "guards": {"default": {"actions": {"secret": "redact"}, "otherwise": "flag"}},
            "mirrors": {
                "lab": {"to": LAB, "at_once": 2, "within": "60s", "priority": 0},
                "around": {"to": "around", "priority": 0},
            },
            "profiles": {
                "standard": {"request": ["guard", "scheduler"], "static": "deny"},
                "looped": {"request": ["guard", "scheduler"], "static": "deny", "response": ["mirror/around"]},
            },
            "edge": {"decision_timeout": "60s"},
            # Errors and copies pass these, too.
            "postprocessing": ["mirror/lab"],
        }
        stack = await around.enter_async_context(
            stacks.start(replicas={"mirror": 1, "guard": 1}, engines=0, changes=changes)
        )
        http = await around.enter_async_context(aiohttp.ClientSession())
        observer = await around.enter_async_context(observing(stack.nats.url))
        made = World(stack, own, lab, relay, http)
        made.compared = observer.listen(MirrorCompared, ANY)
        made.completed = observer.listen(ResponseCompleted, ANY)

        async def mirrors() -> bool:
            request_id, status, _ = await made.ask()
            assert status == 200
            await eventually(lambda: any(e.request_id == request_id for e in made.compared), timeout=2)
            return True

        await eventually(mirrors)
        yield made


@pytest.mark.parametrize("path", CASES)
async def test_requests_of_every_api_are_answered_as_before_and_mirrored(world: World, path: str) -> None:
    request_id, status, body = await world.ask(path)
    assert status == 200, body
    assert b"Hello" in body
    compared = await world.comparison(request_id)
    assert compared.outcome == "answered", compared
    assert compared.likeness == Likeness(same_text=True, words=1.0)
    assert (compared.original.cost_nanos, compared.copy.cost_nanos) == (5 * 1000 + 2 * 2000, 5 * 3000 + 2 * 4000)
    assert (compared.original.model, compared.copy.model) == (OWN, LAB)
    [first] = [r for r in world.own.received if r.header("x-request-id") == request_id]
    [copy] = [r for r in world.copies() if r.header("x-request-id") == compared.copy_id]
    sent, copied = json.loads(first.body), json.loads(copy.body)
    assert "silent" not in sent
    assert sent["temperature"] == copied["temperature"] == 0.25
    assert copied["model"] == LAB
    assert {**CASES[path]}.items() <= copied.items()


async def test_a_streamed_request_is_mirrored_as_a_stream_with_its_usage(world: World) -> None:
    request_id, status, body = await world.ask(stream=True)
    assert status == 200
    assert b'"usage"' not in body, "the client didn't ask for it"
    compared = await world.comparison(request_id)
    assert (compared.outcome, compared.stream) == ("answered", True)
    assert compared.likeness == Likeness(same_text=True, words=1.0)
    assert compared.copy.usage is not None
    assert compared.copy.usage.completion_tokens == 2
    assert compared.copy.cost_nanos == 5 * 3000 + 2 * 4000
    assert compared.original.usage is not None
    assert compared.original.usage.estimated, "the client didn't ask for it"
    assert compared.copy.ttft_ms is not None
    assert compared.copy.duration_ms is not None
    assert compared.original.ttft_ms is not None
    assert compared.original.duration_ms is not None


async def test_a_copy_is_counted_for_the_mirrors_tenant_and_never_copied_again(world: World) -> None:
    request_id, _, _ = await world.ask()
    compared = await world.comparison(request_id)
    first, copy = await world.end(request_id), await world.end(compared.copy_id)
    assert first.identity is not None
    assert copy.identity is not None
    assert (first.identity.tenant, copy.identity.tenant) == ("acme", "mirror")
    assert (copy.served, copy.status) == (LAB, 200)
    await eventually(lambda: _is_above_zero(world, "a copy"))
    assert not any(event.request_id.startswith("mirror-") for event in world.compared)


async def _is_above_zero(world: World, reason: str) -> bool:
    return await world.skipped(reason) > 0


async def test_a_candidate_that_is_the_gateway_itself_ends_after_one_copy(world: World) -> None:
    request_id, status, _ = await world.ask(model=LOOPED)
    assert status == 200

    async def is_noticed() -> bool:
        return await world.skipped("a copy", "around") > 0

    await eventually(is_noticed)
    await eventually(lambda: [e for e in world.compared if e.request_id == request_id and e.mirror == "around"])
    [relayed] = world.relayed

    async def explained() -> bool:
        code, output = await world.stack.command("explain", relayed)
        return code == 0 and "not copied: a copy" in output

    await eventually(explained)
    assert world.relayed == [relayed]


async def test_a_request_of_three_megabytes_is_mirrored_whole(world: World) -> None:
    text = "word " * 600_000
    request_id, status, body = await world.ask(messages=[{"role": "user", "content": text}])
    assert status == 200, body
    compared = await world.comparison(request_id)
    assert compared.outcome == "answered", compared
    [copy] = [r for r in world.copies() if r.header("x-request-id") == compared.copy_id]
    assert json.loads(copy.body)["messages"][0]["content"] == text


async def test_requests_without_a_models_answer_are_not_mirrored(world: World) -> None:
    before, skipped = len(world.copies()), await world.skipped("not answered by a model")
    for status, asked in ((404, world.ask(model="nobody")), (401, world.ask(key="stranger"))):
        assert (await asked)[1] == status
    await eventually(lambda: _has_risen(world, "not answered by a model", skipped + 1))
    assert len(world.copies()) == before


async def _has_risen(world: World, reason: str, to: float) -> bool:
    return await world.skipped(reason) >= to


async def test_what_the_guard_redacts_never_reaches_the_candidate(world: World) -> None:
    request_id, status, _ = await world.ask(messages=[{"role": "user", "content": f"My key is {SECRET}, keep it"}])
    assert status == 200
    compared = await world.comparison(request_id)
    [copy] = [r for r in world.copies() if r.header("x-request-id") == compared.copy_id]
    [first] = [r for r in world.own.received if r.header("x-request-id") == request_id]
    assert b"keep it" in copy.body
    assert SECRET.encode() not in first.body
    assert SECRET.encode() not in copy.body


async def test_a_candidate_that_hangs_delays_no_client_and_holds_no_more_than_its_room(world: World) -> None:
    busy = await world.skipped("busy")
    began = len(world.copies())
    world.lab.hang()
    try:
        answers = [await world.ask() for _ in range(6)]
        assert [status for _, status, _ in answers] == [200] * 6
        await eventually(lambda: len(world.copies()) == began + 2)
        await eventually(lambda: _has_risen(world, "busy", busy + 4))
        assert len(world.copies()) == began + 2
    finally:
        world.lab.release()
    ids = {request_id for request_id, _, _ in answers}
    await eventually(lambda: sum(event.request_id in ids for event in world.compared) == 2)
    request_id, _, _ = await world.ask()
    assert (await world.comparison(request_id)).outcome == "answered"


async def test_a_stream_that_breaks_off_is_no_answer(world: World) -> None:
    async def cut(request: Received) -> None:
        await request.begin_stream()
        await request.chunk(STREAM[: STREAM.index(b"\n\n") + 2])
        request.cut()

    world.lab.pages[CHAT] = cut
    try:
        request_id, status, body = await world.ask(stream=True)
        compared = await world.comparison(request_id)
    finally:
        world.lab.pages[CHAT] = _chat
    assert (status, body[-14:]) == (200, b"data: [DONE]\n\n")
    assert (compared.outcome, compared.likeness) == ("failed", None)


async def test_a_refusal_for_lack_of_room_pauses_the_mirror_and_no_client(world: World) -> None:
    async def refuse(request: Received) -> None:
        await request.answer(b'{"error": {"message": "full"}}', status=429, more="retry-after: 1\r\n")

    world.lab.pages[CHAT] = refuse
    try:
        request_id, status, _ = await world.ask()
        compared = await world.comparison(request_id)
        assert (status, compared.outcome, compared.copy.status) == (200, "refused", 429)

        async def is_paused() -> bool:
            """One of those that come all the time does so within the second of the pause."""
            assert (await world.ask())[1] == 200
            return await world.skipped("paused") > 0

        await eventually(is_paused)
    finally:
        world.lab.pages[CHAT] = _chat

    async def goes_on() -> bool:
        request_id, _, _ = await world.ask()
        await eventually(lambda: any(e.request_id == request_id for e in world.compared), timeout=2)
        return True

    await eventually(goes_on)


async def test_a_request_behind_envoy_is_mirrored_too(
    world: World, module_processes: Processes, start_envoy: StartEnvoy
) -> None:
    adapter = module_processes.fork("pointsman-epp-adapter", env={**world.stack.env, "POINTSMAN_PORT": "0"})
    await adapter.wait_ready()
    url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
    envoy = await start_envoy(("127.0.0.1", int(url.rpartition(":")[2])), [("127.0.0.1", world.own.port)])
    headers = {"authorization": "Bearer acme", "x-request-id": "through-envoy", **JSON}

    async def mirrored() -> MirrorCompared | None:
        data = io.BytesIO(json.dumps({"model": OWN, **CASES[CHAT]}).encode())
        async with world.http.post(f"{envoy}{CHAT}", data=data, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            asked = answer.headers["x-request-id"]
        return await eventually(lambda: next((e for e in world.compared if e.request_id == asked), None), timeout=5)

    compared = await eventually(mirrored)
    assert (compared.outcome, compared.likeness) == ("answered", Likeness(same_text=True, words=1.0))


async def test_the_command_compares_the_two_models(world: World) -> None:
    request_id, _, _ = await world.ask()
    await world.comparison(request_id)

    async def told() -> dict[str, Any]:
        code, output = await world.stack.command("mirrors", "--since", "1440", "lab", "--json")
        assert code == 0, output
        row = next(row for row in map(json.loads, output.splitlines()) if row["model"] == OWN)
        # The stream may lack the last events for a moment.
        assert row["copies"] == len({e.copy_id for e in world.compared if (e.mirror, e.original.model) == ("lab", OWN)})
        return row

    row = await eventually(told)
    assert (row["mirror"], row["model"], row["candidate"]) == ("lab", OWN, LAB)
    assert row["likeness"] == 1.0
    assert row["copy"]["dollars"] > row["original"]["dollars"] > 0
    code, output = await world.stack.command("explain", request_id)
    assert code == 0, output
    assert f"{LAB} answered a copy" in output


async def test_a_mirror_that_is_killed_is_missed_by_no_client(world: World) -> None:
    world.stack.services["mirror"][0].kill()
    for _ in range(5):
        request_id, status, body = await world.ask()
        assert status == 200, body
        end = await world.end(request_id)
        assert (end.outcome, end.level) == ("ok", "full")
    await world.stack.restart("mirror", 0)

    async def mirrors_again() -> bool:
        request_id, _, _ = await world.ask()
        await eventually(lambda: any(e.request_id == request_id for e in world.compared), timeout=2)
        return True

    await eventually(mirrors_again)


async def test_a_request_that_is_asked_about_twice_is_copied_once(world: World) -> None:
    """Clients choose ids: the same one twice is the same request to a mirror."""
    request_id, _, _ = await world.ask()
    await world.comparison(request_id)
    world.asked -= 1
    again, status, _ = await world.ask()
    assert (again, status) == (request_id, 200)
    await eventually(lambda: _is_above_zero(world, "copied before"))
    assert sum(event.request_id == request_id for event in world.compared) == 1
