"""External providers behind real processes: chosen, asked with the gateway's keys, and followed by others."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import nats
import openai
import pytest
import pytest_asyncio
from nats.aio.msg import Msg

from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.response import AttemptFailed, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.mock_providers import AWS_KEYS, MockProvider
from pointsman_testing.observer import observing
from pointsman_testing.ports import free_port
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

E = TypeVar("E", RequestScheduled, ResponseCompleted)

OWN = "llama-3.1-8b"
CANARY = "canary-9d41"


class World:
    """A gateway with one engine of its own and three providers."""

    def __init__(self, stack: Stack, engine: FakeEngine, providers: dict[str, MockProvider]) -> None:
        self.stack = stack
        self.engine = engine
        self.providers = providers
        self.seen: list[bytes] = []
        """Everything that went over the bus."""
        self.ai = openai.AsyncOpenAI(base_url=f"{stack.door}/v1", api_key=f"{CANARY}-client", max_retries=5)

    async def ask(self, model: str, **headers: str) -> str:
        answer = await self.ai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], extra_headers=headers
        )
        assert answer.model == model
        return answer.choices[0].message.content or ""

    async def stream(self, model: str) -> str:
        chunks = await self.ai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    def asked(self) -> dict[str, int]:
        """How many requests each provider got."""
        return {name: len(provider.asked) for name, provider in self.providers.items()}


def configuration(engine: FakeEngine, providers: dict[str, MockProvider], keys: Path) -> dict[str, Any]:
    files = {"openai": "key", "anthropic": "key", "bedrock": "aws"}
    (keys / "key").write_text(f"{CANARY}-key\n")
    (keys / "aws").write_text(json.dumps({"aws_access_key_id": AWS_KEYS[0], "aws_secret_access_key": AWS_KEYS[1]}))
    nowhere = f"http://127.0.0.1:{free_port()}"
    far: dict[str, Any] = {
        name: {"kind": name, "base_url": provider.url, "credential": f"file:{keys / files[name]}"}
        for name, provider in providers.items()
    }
    far["openai"]["prompt_cache_key"] = True
    (keys / "revoked").write_text(f"{CANARY}-revoked\n")
    accounts = [f"file:{keys / name}" for name in ("revoked", "key")]
    far["accounts"] = {"kind": "openai", "base_url": providers["openai"].url, "credential": accounts}
    far["bedrock"]["region"] = "eu-north-1"
    far["gone"] = {"kind": "openai", "base_url": nowhere}
    far["keyless"] = {"kind": "openai", "base_url": nowhere, "credential": "env:POINTSMAN_TEST_NO_SUCH_KEY"}
    return {
        "pools": {
            "llama-8b": {
                "models": ["llama-8b", "sql-lora"],
                "loras": ["sql-lora"],
                "discovery": "static",
                "engines": [engine.url],
            },
            "dead": {"models": ["dead-8b"], "discovery": "static", "engines": [nowhere]},
        },
        "providers": far,
        "models": {
            "gpt-large": {"provider": "openai", "served_as": "gpt-5", "cost": {"input": 2, "output": 8}},
            "gpt-small": {"provider": "openai", "served_as": "gpt-5-mini", "cost": {"input": 1, "output": 4}},
            "claude": {"provider": "anthropic", "cost": {"input": 3, "output": 15}},
            "two-accounts": {"provider": "accounts", "served_as": "gpt-5"},
            "nova": {"provider": "bedrock", "served_as": "eu.amazon.nova-v1:0"},
            "keyless": {"provider": "keyless"},
            "fragile": {"provider": "gone", "fallbacks": ["claude", "nova"]},
            "dead-8b": {"pool": "dead", "fallbacks": ["nova"]},
            OWN: {"pool": "llama-8b", "served_as": "llama-8b", "cost": {"input": 0.1, "output": 0.1}},
        },
        # A request that still goes to the saturated pool is to be answered, not held.
        "scheduling": {"default": {"flow_control": {"enabled": False}}},
        "profile-picker": {
            "use": "rules",
            "rules": [
                {"when": 'model == "auto" && headers["x-priority"] == "low"', "profile": "spared"},
                {"when": 'model == "auto" && headers["x-priority"] == "high"', "profile": "overflow"},
                {"when": 'model == "auto" && pools.all(p, pools[p].saturation >= 1.0)', "profile": "overflow"},
                {"when": 'model == "auto"', "profile": "auto"},
            ],
            "default": "standard",
        },
        "profiles": {
            "standard": {"request": ["scheduler"]},
            "auto": {"request": ["model-selector/own", "scheduler"]},
            "overflow": {"request": ["model-selector/external", "scheduler"]},
            "spared": {"request": ["model-selector/limited", "scheduler"]},
        },
        "selectors": {
            "own": {"models": [OWN], "scorers": ["cost"]},
            "limited": {
                "models": ["gpt-small", "claude"],
                "filters": ["rate-limited"],
                "scorers": ["cost"],
                "fallbacks": 1,
            },
            "external": {
                "models": ["gpt-large", "claude"],
                "filters": ["rate-limited"],
                "scorers": ["cost"],
                "fallbacks": 1,
            },
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with AsyncExitStack() as around:
        engine = await around.enter_async_context(FakeEngine(models={"data": [{"id": "llama-8b"}]}))
        providers = {
            "openai": MockProvider("openai", key=f"{CANARY}-key"),
            "anthropic": MockProvider("anthropic", key=f"{CANARY}-key"),
            "bedrock": MockProvider("bedrock"),
        }
        for provider in providers.values():
            await around.enter_async_context(provider)
        changes = configuration(engine, providers, tmp_path_factory.mktemp("keys"))
        stack = await around.enter_async_context(stacks.start(engines=0, changes=changes))
        made = World(stack, engine, providers)
        around.push_async_callback(made.ai.close)
        client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] # untyped in nats-py
        around.push_async_callback(client.close)

        async def keep(message: Msg) -> None:
            made.seen.append(message.subject.encode() + b" " + message.data)

        await client.subscribe(">", cb=keep)  # pyright: ignore[reportUnknownMemberType] # untyped in nats-py
        await client.flush()

        async def serves() -> bool:
            try:
                return await made.ask("auto") == "Hello"
            except openai.APIStatusError:
                return False

        await eventually(serves)
        yield made


@pytest.mark.requirement("S0-64", "S0-65", "S0-66", "S0-67", "S0-68", "S0-69", "S0-71", "S3-16")
@pytest.mark.parametrize("model", ["gpt-large", "claude", "nova"])
async def test_a_model_of_a_provider_is_served_by_its_name_without_any_selection(world: World, model: str) -> None:
    async with observing(world.stack.nats.url) as seen:
        scheduled, ended = seen.listen(RequestScheduled, ANY), seen.listen(ResponseCompleted, ANY)
        assert await world.ask(model) == "Hello from far"
        assert await world.stream(model) == "Hello from far"
        await eventually(lambda: len(_of(model, ended)) == len(_of(model, scheduled)) == 2)
    for decision, completed in zip(_of(model, scheduled), _of(model, ended), strict=True):
        assert decision.target == completed.target
        assert decision.target.provider in world.providers
        assert (decision.profile, decision.pool, decision.endpoints) == ("standard", "-", (decision.target.provider,))
        assert [report.stage for report in decision.trail] == ["preprocessor", "profile-picker"]
        assert (completed.outcome, completed.worker, completed.model) == ("ok", decision.target.provider, model)
        assert [attempt.outcome for attempt in completed.attempts] == ["answered"]


async def test_the_turns_of_a_session_have_one_cache_key_at_a_provider(world: World) -> None:
    sessions = ({"x-session-id": "s-1"}, {"x-claude-code-session-id": "s-2"}, {"x-session-id": "s-1"}, dict[str, str]())
    for headers in sessions:
        assert await world.ask("gpt-large", **headers) == "Hello from far"
    first, second, again, none = [each.body.get("prompt_cache_key") for each in world.providers["openai"].asked[-4:]]
    assert first == again != second
    assert None not in (first, second)
    assert none is None


async def test_a_revoked_credential_beside_a_good_one_fails_no_request(world: World) -> None:
    async with observing(world.stack.nats.url) as seen:
        ended = seen.listen(ResponseCompleted, ANY)
        for number in range(8):
            assert await world.ask("two-accounts", **{"x-session-id": f"s-{number}"}) == "Hello from far"
        await eventually(lambda: len(_of("two-accounts", ended)) == 8)
    outcomes = [[attempt.outcome for attempt in each.attempts] for each in _of("two-accounts", ended)]
    # It is refused once, and pauses then.
    assert sorted(outcomes, key=len) == [["answered"]] * 7 + [["failed", "answered"]]


@pytest.mark.requirement("S0-72")
async def test_auto_is_selected_resolved_and_served_by_a_provider(world: World) -> None:
    async with observing(world.stack.nats.url) as seen:
        scheduled = seen.listen(RequestScheduled, ANY)
        assert await world.ask("auto", **{"x-priority": "high"}) == "Hello from far"
        decision = await eventually(lambda: next((d for d in scheduled if d.profile == "overflow"), None))
    assert world.providers["openai"].asked[-1].body["model"] == "gpt-5"
    assert [report.stage for report in decision.trail] == ["preprocessor", "profile-picker", "model-selector"]
    assert "after it claude" in decision.reason


@pytest.mark.requirement("S0-76", "S0-25")
async def test_an_external_model_serves_only_while_every_own_pool_is_saturated(world: World) -> None:
    before = world.asked()
    assert await world.ask("auto") == "Hello"
    assert world.asked() == before
    world.engine.waiting = 50
    try:
        await eventually(lambda: _answers(world, "Hello from far"))
    finally:
        world.engine.waiting = 0
    await eventually(lambda: _answers(world, "Hello"))


def _of(model: str, events: list[E]) -> list[E]:
    """Those about requests for a model: the last ones of another test may still be on their way."""
    return [event for event in events if event.model == model]


async def _answers(world: World, text: str) -> bool:
    return await world.ask("auto") == text


@pytest.mark.requirement("S0-70")
@pytest.mark.parametrize(("model", "first", "second"), [("fragile", "gone", "anthropic"), ("dead-8b", None, "bedrock")])
async def test_when_the_first_one_cannot_the_next_one_serves(
    world: World, model: str, first: str | None, second: str
) -> None:
    async with observing(world.stack.nats.url) as seen:
        failed, ended = seen.listen(AttemptFailed, ANY), seen.listen(ResponseCompleted, ANY)
        assert await world.ask(model) == "Hello from far"
        assert await world.stream(model) == "Hello from far"
        await eventually(lambda: len(_of(model, ended)) == 2)
    ids = {completed.request_id for completed in _of(model, ended)}
    expected = [first, second] if first is not None else [second]
    for completed in _of(model, ended):
        assert [attempt.worker for attempt in completed.attempts] == expected
        assert completed.target is not None
        assert completed.target.provider == second
    told = [(event.worker, event.next_worker) for event in failed if event.request_id in ids]
    assert told == [(first, second)] * (2 if first else 0)


@pytest.mark.requirement("S0-53", "S0-70")
async def test_a_provider_that_asks_for_a_pause_gets_one(world: World) -> None:
    limited = world.providers["openai"]
    limited.status, limited.headers = 429, {"retry-after": "600"}
    try:
        async with observing(world.stack.nats.url) as seen:
            told = seen.listen(ModelStatistics, ANY)
            assert await world.ask("auto", **{"x-priority": "low"}) == "Hello from far"
            await eventually(lambda: any(word.model == "gpt-small" and word.limited_until_ms for word in told))
        asked = len(limited.asked)

        async def is_spared() -> bool:
            """Whether the selector goes around it; it hears of the pause when we do, or a moment later."""
            nonlocal asked
            assert await world.ask("auto", **{"x-priority": "low"}) == "Hello from far"
            before, asked = asked, len(limited.asked)
            return asked == before

        await eventually(is_spared)
    finally:
        limited.status, limited.headers = 200, {}


async def test_a_field_that_a_provider_lacks_is_a_400_for_the_client(world: World) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await world.ai.chat.completions.create(model="claude", messages=[{"role": "user", "content": "Hi"}], seed=7)
    assert refused.value.param == "seed"


@pytest.mark.requirement("S0-67", "PRIVACY-1")
async def test_keys_of_providers_are_nowhere_but_in_requests_to_them(world: World) -> None:
    def ended() -> int:
        return sum(message.startswith(b"pm.evt.response.completed.") for message in world.seen)

    of_gateway = (f"{CANARY}-key", f"{CANARY}-revoked")
    before = ended()
    for model in ("gpt-large", "claude", "nova"):
        assert await world.ask(model) == "Hello from far"
    assert all(provider.asked for provider in world.providers.values())
    with pytest.raises(openai.InternalServerError, match="keyless"):
        await world.ai.with_options(max_retries=0).chat.completions.create(
            model="keyless", messages=[{"role": "user", "content": "Hi"}]
        )
    await eventually(lambda: ended() >= before + 4 and len(world.seen) > 30)
    logs = "\n".join(service.log_text() for service in world.stack.all_services())
    assert "env:POINTSMAN_TEST_NO_SUCH_KEY is empty or missing" in logs
    everything = b"\n".join((*world.seen, logs.encode()))
    for word in (*of_gateway, AWS_KEYS[1]):
        assert word.encode() not in everything
    asked = str([provider.asked for provider in world.providers.values()])
    for word in of_gateway:
        asked = asked.replace(word, "")
    assert CANARY not in asked
