"""Data-parallel ranks through real processes: agent, scheduler and frontend take each rank of an engine as a worker."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, cast

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import Observer, observing
from pointsman_testing.stack import POOL, EngineProcess, KvTelling, ServedPool, Stack, StackFactory
from pointsman_testing.tiny_tokenizer import write_tokenizer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MODEL: Final = "llama-3.1-8b"
BLOCK: Final = 16
RANKS: Final = 2
PROMPTS: Final = 24


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One engine of two ranks that publish their KV events."""
    folder = write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))
    pool: JsonValue = {"models": [MODEL], "block_tokens": BLOCK, "tokenizer": {"path": str(folder)}}
    changes: dict[str, JsonValue] = {
        "pools": {POOL: pool},
        "models": {MODEL: {"pool": POOL}},
        "profiles": {"standard": {"request": ["scheduler"]}},
        "profile-picker": {"use": "single", "profile": "standard"},
        "selectors": {},
    }
    served = ServedPool(models=(MODEL,), loras=(), ranks=RANKS)
    cache = KvTelling(folder, 4096, BLOCK, BLOCK)
    async with stacks.start(engines=1, bundled=True, changes=changes, served=served, cache=cache) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def seen(stack: Stack) -> AsyncIterator[Observer]:
    async with observing(stack.nats.url) as observer:
        yield observer


class Client:
    """Sends chats to the gateway and reads the decisions about them."""

    def __init__(self, stack: Stack, seen: Observer, http: aiohttp.ClientSession) -> None:
        self._url = f"{stack.door}/v1/chat/completions"
        self._http = http
        self._decisions = seen.listen(RequestScheduled, POOL)

    async def ask(self, text: str, tokens: int = 2) -> tuple[RequestScheduled, int]:
        """The decision, and the cached tokens by the engine's own count."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}

        async def once() -> tuple[int, str, dict[str, dict[str, dict[str, int]]]]:
            async with self._http.post(self._url, json=body | {"ignore_eos": True}) as answer:
                return answer.status, answer.headers["x-request-id"], await answer.json()

        status, request_id, document = await answered(once)
        assert status == 200, document
        found = await eventually(lambda: next((d for d in self._decisions if d.request_id == request_id), None))
        assert found is not None
        return found, document["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack, seen: Observer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as http:
        yield Client(stack, seen, http)


async def finished(engine: EngineProcess) -> Counter[str]:
    """Requests that each rank has answered, by its worker's name."""
    ranks = cast("list[dict[str, int]]", (await engine.state())["ranks"])
    return Counter({name: rank["finished"] for name, rank in zip(engine.workers, ranks, strict=True)})


def prompt(number: int) -> str:
    return f"{number}: " + f"which track does train {number} take at the points? " * 12


async def test_each_rank_answers_what_it_was_chosen_for_and_its_blocks_are_known(stack: Stack, client: Client) -> None:
    (engine,) = stack.engines
    before = await finished(engine)
    first = await asyncio.gather(*(client.ask(prompt(number)) for number in range(PROMPTS)))
    chosen = {number: decision.endpoints[0] for number, (decision, _) in enumerate(first)}
    assert set(chosen.values()) == set(engine.workers)
    assert await finished(engine) - before == Counter(chosen.values())

    async def known(number: int) -> bool:
        """Whether the prompt goes back to the rank that holds it, by blocks that the rank reported."""
        decision, cached = await client.ask(prompt(number))
        assert (decision.prefix, decision.endpoints[0]) == ("precise", chosen[number])
        # The engine computes the last token, also of a prompt of whole blocks.
        return 0 < cached <= decision.cached_tokens <= cached + BLOCK

    for number in range(4):
        await eventually(lambda number=number: known(number))


async def test_a_rank_that_its_engine_does_not_report_serves_with_unknown_load(
    stack: Stack, seen: Observer, client: Client
) -> None:
    (engine,) = stack.engines
    snapshots = seen.listen(PoolSnapshot, POOL)

    def loads() -> dict[str, str]:
        return {each.worker: each.load_unknown for each in snapshots[-1].workers} if snapshots else {}

    await engine.set_faults("hide-rank=1")
    # The number of ranks is learnt once in a life of the engine: a rank that disappears stays, with a load unknown.
    await eventually(lambda: loads().get("engine-1-rank-1") == "the engine's metrics name no load of rank 1")
    assert loads()["engine-1-rank-0"] == ""
    before = await finished(engine)
    await asyncio.gather(*(client.ask(f"hidden {prompt(number)}") for number in range(PROMPTS)))
    assert set(+(await finished(engine) - before)) == set(engine.workers)
    await engine.set_faults()
    await eventually(lambda: set(loads().values()) == {""})
