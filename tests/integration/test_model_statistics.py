"""Every replica of the model-selector chooses by the statistics of completions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

SERVED_AS = "llama-3.1-8b"


class World:
    """Models `quick` and `slow` with an engine each, and `auto`, which takes the quickest healthy one."""

    def __init__(self, stack: Stack, quick: EngineProcess) -> None:
        self.stack = stack
        self.quick = quick

    async def ask(self, model: str, count: int, *, comes_again: bool = True) -> Counter[int]:
        """So many requests at once; how many got which status."""
        body = {"model": model, "prompt": "Count", "max_tokens": 4, "stream": True}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

            async def one() -> tuple[int]:
                async with http.post(f"{self.stack.door}/v1/completions", json=body) as answer:
                    await answer.read()
                    return (answer.status,)

            asked = (answered(one) if comes_again else one() for _ in range(count))
            return Counter(status for (status,) in await asyncio.gather(*asked))


@pytest_asyncio.fixture(loop_scope="module")
async def world(stacks: StackFactory, processes: Processes, tmp_path: Path) -> AsyncIterator[World]:
    engines = {"quick": EngineProcess("quick", processes, tmp_path, 100.0)}
    engines["slow"] = EngineProcess("slow", processes, tmp_path, 0.3)
    for engine in engines.values():
        await engine.start()
    changes: dict[str, Any] = {
        "pools": {
            "llama-8b": {"models": [SERVED_AS, "sql-lora"], "loras": ["sql-lora"]},
            **{name: {"discovery": "static", "engines": [engine.url]} for name, engine in engines.items()},
        },
        "models": {name: {"pool": name, "served_as": SERVED_AS} for name in engines},
        "selectors": {"cheap": {"models": list(engines), "filters": ["healthy"], "scorers": ["latency"]}},
    }
    async with stacks.start(
        replicas={"model-selector": 2, "metrics-collector": 2}, engines=0, changes=changes
    ) as stack:
        yield World(stack, engines["quick"])


@pytest.mark.requirement("S0-53")
async def test_choices_follow_what_completions_taught(world: World) -> None:
    async with observing(world.stack.nats.url) as seen:
        told, decisions = seen.listen(ModelStatistics, ANY), seen.listen(RequestScheduled, ANY)

        def statistics(model: str) -> list[ModelStatistics]:
            """The newest word of each collector."""
            newest = {word.source: word for word in told if word.model == model}
            return list(newest.values()) if len(newest) == 2 else []

        async def all_go_to(pool: str) -> bool:
            """Whether twenty requests for `auto` did. Both selectors get a share; one without statistics deals by
            chance."""
            before = len(decisions)
            await world.ask("auto", 20)
            await eventually(lambda: len(decisions) >= before + 20)
            return {decision.target.pool for decision in decisions[before:]} == {pool}

        for model in ("quick", "slow"):
            assert await world.ask(model, 6) == {200: 6}
        for model in ("quick", "slow"):
            await eventually(lambda model=model: [word.requests >= 6 for word in statistics(model)] == [True, True])

        async def quick_is_quicker() -> bool:
            """Where the machine stopped the quick one for a while, more requests show what it is."""
            await world.ask("quick", 6)
            quick, slow = (statistics(model)[0].ttft_ms for model in ("quick", "slow"))
            assert quick is not None
            assert slow is not None
            return quick < slow

        await eventually(quick_is_quicker)
        await eventually(lambda: all_go_to("quick"))

        await world.quick.set_faults("error=503")

        async def quick_mostly_fails() -> bool:
            """The slower the machine, the more answers came before: failures go on until they are the majority."""
            failures = await world.ask("quick", 40, comes_again=False)
            assert failures[200] == 0
            words = statistics("quick")
            return bool(words) and all(word.errors > word.requests / 2 for word in words)

        await eventually(quick_mostly_fails)
        await eventually(lambda: all_go_to("slow"))
