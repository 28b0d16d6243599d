"""Each rank's KV events are those of its own worker."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from pointsman_engines.ranks import Rank
from pointsman_testing import eventually
from pointsman_worker_agent.domain.kv_endpoints import KvEndpoints
from pointsman_worker_agent.kv_wiring import KvFeeds


class Answering:
    """A bus that remembers which workers were answered for."""

    def __init__(self) -> None:
        self.process = SimpleNamespace(instance="agent-1")
        self.workers: list[str] = []

    def answer(self, message: object, handler: object, pool: str, worker: str) -> None:
        del message, handler, pool
        self.workers.append(worker)


def voice(name: str) -> SimpleNamespace:
    worker = SimpleNamespace(pool="p", worker=name, models=("m",))
    status = SimpleNamespace(boot_id="b", facts=None)
    return SimpleNamespace(worker=worker, registrar=SimpleNamespace(withheld=""), status=status)


async def test_a_rank_is_heard_at_the_port_of_its_number_among_all_servers() -> None:
    bus = Answering()
    settings = SimpleNamespace(kv_ranks=1, kv_block_tokens=64, kv_store="", kv_store_media=())
    changed: list[Any] = []
    engine = SimpleNamespace(ranks=(), voices=(voice("w"),), on_change=changed.append)
    service = cast("Any", SimpleNamespace(bus=bus, settings=settings))
    feeds = KvFeeds(service, cast("Any", engine), KvEndpoints("tcp://127.0.0.1:1"))
    task = asyncio.create_task(feeds.run())
    try:
        await eventually(lambda: [list(feed.subscribers) for feed in feeds.current] == [[0]])
        engine.ranks = (Rank(0, "2"), Rank(1, "3"))
        engine.voices = (voice("w-rank-2"), voice("w-rank-3"))
        changed[0]()
        await eventually(lambda: [list(feed.subscribers) for feed in feeds.current] == [[2], [3]])
        assert bus.workers == ["w", "w-rank-2", "w-rank-3"], "schedulers may ask for what each of them holds"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await feeds.close()
