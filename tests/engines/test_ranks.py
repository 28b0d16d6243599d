"""One vLLM with two data-parallel ranks behind the gateway: each rank is a worker, and answers its own requests."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import Processes, eventually
from pointsman_testing.engine_stack import EngineStack, gateway_before
from pointsman_testing.observer import observing
from pointsman_testing.real_engine import MODEL, POOL, RealEngine

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.alone,
    pytest.mark.usefixtures("room"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(2400),
]

RANKS: Final = 2
CONVERSATIONS: Final = 80
TURNS: Final = 3
AT_ONCE: Final = 8
PREDICTED: Final = 0.98
"""Share of the requests whose cached tokens must be predicted exactly."""
ANSWERED: Final = "vllm:request_success_total"
CHAT: Final = "/v1/chat/completions"


class Turn(NamedTuple):
    """One answered request."""

    request_id: str
    cached: int
    """Tokens, as the engine says."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def parallel(environment: Path, model: Path, processes: Processes) -> AsyncIterator[RealEngine]:
    """One server, with a batch, a cache and a publisher of KV events for each rank."""
    folder = model.parent / "ranks"
    folder.mkdir()
    engine = RealEngine("engine-1", processes, folder, environment=environment, model=model, ranks=RANKS)
    await engine.start()
    yield engine
    engine.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(parallel: RealEngine, model: Path, processes: Processes) -> AsyncIterator[EngineStack]:
    async with gateway_before([parallel], MODEL, model, processes, model.parent / "ranks") as stack:
        yield stack


async def answered(engine: RealEngine, http: aiohttp.ClientSession) -> Counter[str]:
    """How many requests each rank has answered, by its worker's name."""
    counts = Counter[str]()
    async with http.get(f"{engine.url}/metrics") as page:
        for line in (await page.text()).splitlines():
            rank = re.search(r'engine="(\d+)"', line) if line.startswith(ANSWERED) else None
            if rank is not None:
                counts[engine.workers[int(rank[1])]] += int(float(line.rpartition(" ")[2]))
    return counts


async def converse(door: str, http: aiohttp.ClientSession, number: int) -> AsyncIterator[Turn]:
    """Chats in which the client repeats the answers."""
    messages: list[JsonValue] = [{"role": "system", "content": f"You are signaller {number} and answer at once. " * 4}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{number}: which track does train {turn} to Paris take today?"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
        async with http.post(door + CHAT, json=body) as answer:
            assert answer.status == 200, await answer.text()
            said = cast("dict[str, Any]", await answer.json())
            yield Turn(answer.headers["x-request-id"], said["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"] or ""})


async def test_each_rank_answers_what_it_was_chosen_for_and_its_cache_is_known(
    gateway: EngineStack, parallel: RealEngine, http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    before = await answered(parallel, http)
    turns: list[Turn] = []
    numbers: Iterator[int] = iter(range(CONVERSATIONS))
    async with observing(gateway.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, POOL.pool)

        async def some() -> None:
            for number in numbers:
                turns.extend([turn async for turn in converse(gateway.door, http, number)])

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        await eventually(lambda: len(decisions) >= len(turns), timeout=60)
    chosen = Counter(decision.endpoints[0] for decision in decisions)

    async def all_counted() -> bool:
        return (await answered(parallel, http) - before).total() >= len(turns)

    await eventually(all_counted, timeout=60)
    served = await answered(parallel, http) - before
    believed = {each.request_id: each.cached_tokens for each in decisions}
    off = [(believed[turn.request_id], turn.cached) for turn in turns if believed[turn.request_id] != turn.cached]
    exact = 1 - len(off) / len(turns)
    measured["ranks"] = {
        "requests": len(turns),
        "chosen": dict(sorted(chosen.items())),
        "answered": dict(sorted(served.items())),
        "predicted exactly": round(exact, 4),
        "cached tokens": sum(turn.cached for turn in turns),
    }
    assert served == chosen
    assert set(chosen) == set(parallel.workers)
    assert exact >= PREDICTED, off
    assert sum(turn.cached for turn in turns) > 0
