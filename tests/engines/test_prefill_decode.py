"""Some vLLM servers compute prompts and others answer, over NIXL: what the client gets is what one engine gives."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.response import ResponseCompleted
from pointsman_testing import Processes, eventually
from pointsman_testing.engine_stack import EngineStack, gateway_before
from pointsman_testing.observer import Observer, observing
from pointsman_testing.ports import free_port
from pointsman_testing.real_engine import BLOCK, MODEL, POOL, RealEngine
from pointsman_testing.vllm_installation import NotInstallable, with_nixl

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.alone,
    pytest.mark.usefixtures("room"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(2400),
]

FOUR: Final = "2P+2D"
REQUESTS: Final = 200
AT_ONCE: Final = 8
PROMPT_WORDS: Final = 60
FREED_S: Final = 1.0
CHAT: Final = "/v1/chat/completions"
TRANSFERS: Final = "vllm:nixl_xfer_time_seconds_count"
COMPUTED: Final = "vllm:prompt_tokens_by_source_total"
"""By `source`: `local_compute` is what the engine computed itself."""
RUNNING: Final = ("vllm:num_requests_running", "vllm:num_requests_waiting")
SCHEDULING: Final[dict[str, JsonValue]] = {
    "default": {
        "handler": "disaggregated",
        "profiles": {
            "decode": {"filters": ["healthy", {"use": "role", "role": "decode"}], "scorers": ["queue"]},
            "prefill": {"filters": ["healthy", {"use": "role", "role": "prefill"}], "scorers": ["queue"]},
        },
    }
}


def engine(name: str, role: str, environment: Path, model: Path, processes: Processes) -> RealEngine:
    kv = '{"kv_connector":"NixlConnector","kv_role":"%s","kv_buffer_device":"cpu"}'
    return RealEngine(
        name,
        processes,
        model.parent,
        environment=environment,
        model=model,
        options=("--kv-transfer-config", kv % ("kv_producer" if role == "prefill" else "kv_consumer")),
        env={
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "UCX_TLS": "tcp,self,sm",
            # A step waits for its turn on a busy machine; an engine that gives up dies.
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3000",
        },
        role=role,
    )


class Roles(NamedTuple):
    """Engines of both roles, as many of the one as of the other."""

    prefill: tuple[RealEngine, ...]
    decode: tuple[RealEngine, ...]

    @property
    def engines(self) -> tuple[RealEngine, ...]:
        """All, named `engine-1` and so on."""
        return tuple(chain.from_iterable(zip(self.prefill, self.decode, strict=True)))

    @property
    def name(self) -> str:
        return f"{len(self.prefill)}P+{len(self.decode)}D"

    @property
    def first(self) -> int:
        """Number of the first prompt: an engine of both fleets has no prompt in its cache from the other one."""
        return 10_000 * len(self.prefill)

    async def transfers(self) -> float:
        """Prompts that were fetched so far."""
        return sum([await each.metric(TRANSFERS) for each in self.decode])

    async def computed(self) -> float:
        """Prompt tokens that the engines which answer have computed themselves."""
        return sum([await computed(each) for each in self.decode])

    async def occupied(self) -> float:
        """Requests that run or wait at any engine."""
        return sum([await each.metric(name) for each in self.engines for name in RUNNING])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(
    request: pytest.FixtureRequest, environment: Path, model: Path, processes: Processes
) -> AsyncIterator[tuple[RealEngine, ...]]:
    """Four engines, by turns of one that computes prompts and one that answers; two where no chosen test wants more."""
    try:
        with_nixl(environment)
    except NotInstallable as error:
        pytest.skip(f"NIXL can't be installed here: {error}")
    (model.parent / "fleet").mkdir()
    count = 4 if any(FOUR in item.nodeid for item in request.session.items) else 2
    engines = tuple(
        engine(f"engine-{number}", "prefill" if number % 2 else "decode", environment, model, processes)
        for number in range(1, count + 1)
    )
    await asyncio.gather(*(each.start() for each in engines))
    yield engines
    for each in engines:
        each.kill()


# The tests with four engines come first: each fleet loses its last engine that computes prompts.
@pytest.fixture(scope="module", params=[2, 1], ids=[FOUR, "1P+1D"])
def roles(request: pytest.FixtureRequest, started: tuple[RealEngine, ...]) -> Roles:
    """The first engines of each role."""
    count: int = request.param
    return Roles(started[0 : 2 * count : 2], started[1 : 2 * count : 2])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def split(roles: Roles, model: Path, processes: Processes) -> AsyncIterator[EngineStack]:
    """A gateway that sends every prompt to an engine of the one role and every answer's part to one of the other."""
    folder = model.parent / "fleet" / roles.name
    folder.mkdir()
    async with gateway_before(roles.engines, MODEL, model, processes, folder, {"scheduling": SCHEDULING}) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def heard(split: EngineStack) -> AsyncIterator[Observer]:
    async with observing(split.nats.url) as observer:
        yield observer


def prompt(number: int) -> str:
    """A prompt that no other one begins like."""
    return f"Request {number}: " + " ".join(f"word{(number * 31 + place) % 977}" for place in range(PROMPT_WORDS))


def chat(number: int, **more: JsonValue) -> dict[str, JsonValue]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt(number)}],
        "max_tokens": 12,
        "temperature": 0,
        **more,
    }


async def ask(http: aiohttp.ClientSession, url: str, path: str, body: dict[str, JsonValue]) -> dict[str, JsonValue]:
    async with http.post(url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        document: dict[str, JsonValue] = await answer.json()
        return document


def text_of(document: dict[str, JsonValue]) -> JsonValue:
    choice = document["choices"][0]  # pyright: ignore - an answer of vLLM
    return choice["message"]["content"]  # pyright: ignore - as above


def counted(document: dict[str, JsonValue]) -> tuple[JsonValue, JsonValue]:
    usage = document["usage"]
    assert isinstance(usage, dict)
    return usage["prompt_tokens"], usage["completion_tokens"]


async def computed(engine: RealEngine) -> float:
    """Prompt tokens that the engine has computed itself."""
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/metrics") as answer:
        text = await answer.text()
    lines = [line for line in text.splitlines() if line.startswith(COMPUTED) and 'source="local_compute"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_answers_are_those_of_one_engine_and_every_prompt_is_transferred(
    split: EngineStack,
    roles: Roles,
    http: aiohttp.ClientSession,
    heard: Observer,
    measured: dict[str, JsonValue],
) -> None:
    ends = heard.listen(ResponseCompleted, POOL.pool)
    before, computed_before = await roles.transfers(), await roles.computed()
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> dict[str, JsonValue]:
        async with room:
            return await ask(http, split.door, CHAT, chat(roles.first + number))

    answers = await asyncio.gather(*(one(number) for number in range(REQUESTS)))
    transfers = await roles.transfers() - before
    computed_there = await roles.computed() - computed_before
    alone = [await ask(http, roles.prefill[0].url, CHAT, chat(roles.first + number)) for number in range(REQUESTS)]
    await eventually(lambda: len(ends) >= REQUESTS)
    texts = [(text_of(one), text_of(other)) for one, other in zip(answers, alone, strict=True)]
    equal = sum(one == other for one, other in texts)
    legs = [leg for end in ends for leg in end.legs]
    measured[f"prefill-decode {roles.name}"] = {
        "requests": REQUESTS,
        "equal texts": equal,
        "transfers": transfers,
        "prompt tokens computed by the engine that answers": computed_there,
        "legs answered": sum(leg.outcome == "answered" for leg in legs),
        "prefill leg, ms (median)": sorted(leg.took_ms for leg in legs)[len(legs) // 2],
    }
    assert equal == REQUESTS
    assert transfers == REQUESTS
    assert computed_there <= REQUESTS * BLOCK
    assert {leg.worker for leg in legs} == {each.name for each in roles.prefill}
    assert [leg.outcome for leg in legs] == ["answered"] * REQUESTS
    assert {end.worker for end in ends} == {each.name for each in roles.decode}
    assert {(end.status, end.level) for end in ends} == {(200, "full")}
    used = [(end.usage.prompt_tokens, end.usage.completion_tokens) for end in ends if end.usage is not None]
    told = [counted(answer) for answer in answers]
    assert sorted(used) == sorted(told) == sorted(map(counted, alone))


async def test_every_api_is_served_by_two_engines_whole_and_streamed(
    split: EngineStack, roles: Roles, http: aiohttp.ClientSession
) -> None:
    bodies: dict[str, dict[str, JsonValue]] = {
        CHAT: {**chat(roles.first + 1001, logprobs=True, top_logprobs=2), "min_tokens": 5},
        "/v1/completions": {
            "model": MODEL,
            "prompt": prompt(roles.first + 1002),
            "max_tokens": 8,
            "temperature": 0,
            "logprobs": 2,
        },
        "/v1/messages": {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt(roles.first + 1003)}],
            "max_tokens": 8,
            "temperature": 0,
        },
        "/v1/responses": {
            "model": MODEL,
            "input": prompt(roles.first + 1004),
            "max_output_tokens": 8,
            "temperature": 0,
        },
    }
    for path, body in bodies.items():
        before = await roles.transfers()
        await ask(http, split.door, path, body)
        streamed = {**body, "stream": True}
        async with http.post(split.door + path, json=streamed) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            assert "error" not in text
        # The second one finds the blocks in the cache of the engine that answers: nothing is left to pull.
        assert await roles.transfers() >= before + 1, path


async def test_what_two_engines_cannot_share_is_served_by_one(
    split: EngineStack, roles: Roles, http: aiohttp.ClientSession
) -> None:
    before = await roles.transfers()
    document = await ask(http, split.door, CHAT, chat(roles.first + 2001, n=2, temperature=1))
    choices = document["choices"]
    assert isinstance(choices, list)
    assert len(choices) == 2
    form: JsonValue = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    await ask(http, split.door, CHAT, chat(roles.first + 2002, response_format=form))
    assert await roles.transfers() == before + 1


@pytest.mark.parametrize("tokens", [1, 3000], ids=["in the prompt", "in the answer"])
async def test_a_client_that_hangs_up_frees_both_engines(
    split: EngineStack,
    roles: Roles,
    http: aiohttp.ClientSession,
    measured: dict[str, JsonValue],
    tokens: int,
) -> None:
    number = roles.first + 3000 + tokens
    body = chat(number, max_tokens=tokens)
    body["messages"] = [{"role": "user", "content": prompt(number) * (8 if tokens == 1 else 1)}]
    request = asyncio.create_task(http.post(split.door + CHAT, json=body))

    async def busy() -> bool:
        return await roles.occupied() > 0

    await eventually(busy, timeout=60)
    request.cancel()
    began = time.monotonic()
    await asyncio.wait([request])
    while await roles.occupied():
        assert time.monotonic() - began < 30, "still busy"
    took_s = time.monotonic() - began
    measured[f"prefill-decode {roles.name} hang-up {'prompt' if tokens == 1 else 'answer'}, s"] = round(took_s, 3)


async def test_a_prefiller_that_is_killed_under_load_fails_no_request(
    split: EngineStack,
    roles: Roles,
    http: aiohttp.ClientSession,
    heard: Observer,
    measured: dict[str, JsonValue],
) -> None:
    ends = heard.listen(ResponseCompleted, POOL.pool)
    room = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def one(number: int) -> None:
        nonlocal done
        async with room:
            await ask(http, split.door, CHAT, chat(roles.first + 4000 + number))
            done += 1
            if done == REQUESTS // 4:
                roles.prefill[-1].kill()

    await asyncio.gather(*(one(number) for number in range(REQUESTS)))
    await eventually(lambda: len(ends) >= REQUESTS)
    assert {end.status for end in ends} == {200}
    outcomes = [leg.outcome for end in ends for leg in end.legs]
    measured[f"prefill-decode {roles.name} prefiller killed"] = {
        "requests": REQUESTS,
        "failed": sum(end.status != 200 for end in ends),
        "legs": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
    }
