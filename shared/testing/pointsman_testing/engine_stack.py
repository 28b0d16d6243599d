"""A gateway before engines that run already."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from pydantic import JsonValue

from pointsman_testing.eventually import eventually
from pointsman_testing.nats_server import new_nats_server
from pointsman_testing.processes import Processes
from pointsman_testing.real_engine import BLOCK, POOL, RealEngine
from pointsman_testing.stack import EngineProcess, KvTelling, Stack


class EngineStack(Stack):
    """Set `real` and `model` before it begins."""

    real: Sequence[RealEngine]
    model: str
    """The base model that they serve."""

    def _engine(self, name: str, speedup: float, cache: KvTelling | None) -> EngineProcess:
        del speedup, cache
        return next(each for each in self.real if each.name == name)

    async def empty_caches(self) -> None:
        """Reset the engines' caches, and wait until the agents know. vLLM reports it with its next batch of events, and
        sends none at rest: a prompt without a whole block makes it work."""
        for engine in self.real:
            status = await engine.post("/reset_prefix_cache")
            if status != 200:
                raise RuntimeError(f"{engine.name} refused to reset its cache: {status}")
            await engine.post("/v1/completions", {"model": self.model, "prompt": "a", "max_tokens": 1})

        async def empty() -> bool:
            return sum([await count_held_blocks(engine.agent.http_url) for engine in self.real]) == 0

        await eventually(empty, timeout=60)


async def count_held_blocks(agent: str | None) -> float:
    """The blocks in an engine's cache, by its agent's metrics."""
    name = "pointsman_kv_blocks_held"
    async with aiohttp.ClientSession() as http, http.get(f"{agent}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{")))


@asynccontextmanager
async def gateway_before(
    engines: Sequence[RealEngine],
    model: str,
    tokenizer: Path | None,
    processes: Processes,
    folder: Path,
    changes: Mapping[str, JsonValue] | None = None,
) -> AsyncGenerator[EngineStack]:
    """NATS, a bundle of every service, and an agent beside each engine. `tokenizer` is the model's folder; `changes` of
    top-level keys of the configuration."""
    pool: dict[str, JsonValue] = {"block_tokens": BLOCK}
    if tokenizer is not None:
        pool["tokenizer"] = {"path": str(tokenizer)}
    document: dict[str, JsonValue] = {"pools": {POOL.pool: pool}, "edge": {"hop_budget": "3s"}, **(changes or {})}
    config = folder / "pointsman.yaml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    nats = new_nats_server()
    await asyncio.to_thread(nats.start)
    stack = EngineStack(nats, processes, folder, config, served=POOL._replace(models=(model,)), bundled=True)
    stack.real, stack.model = engines, model
    try:
        await stack.begin({}, len(engines), 1.0)
        yield stack
    finally:
        for process in stack.all_services():
            process.kill()
        await asyncio.to_thread(nats.close)
