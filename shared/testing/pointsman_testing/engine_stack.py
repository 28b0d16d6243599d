"""A gateway before engines that run already."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from pydantic import JsonValue

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
