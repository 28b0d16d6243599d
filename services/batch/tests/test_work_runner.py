"""The configuration may lack the queue of an item: the item waits for a while, then its producer gets an error."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from pointsman_batch.adapters.work_queue import TakenItem, WorkStreams
from pointsman_batch.domain.work_items import ItemKey, StoredItem
from pointsman_batch.metrics import BatchMetrics
from pointsman_batch.run_tools import RunTools
from pointsman_batch.work_runner import WorkRunner
from pointsman_contracts.work import WorkItem, WorkResult
from pointsman_core.config.work_queue import WorkQueue
from pointsman_testing import eventually

STORED_MS = 1_000_000


class Item:
    """An item as the server gave it."""

    def __init__(self) -> None:
        data = WorkItem(id="a", body={"model": "m"}).encode()
        self.stored = StoredItem("unheard-of", data, "", 7, STORED_MS)
        self.returned: list[float | None] = []
        self.ended = False

    async def return_item(self, delay_s: float | None = None) -> None:
        await asyncio.sleep(0)
        self.returned.append(delay_s)

    async def end_item(self) -> None:
        await asyncio.sleep(0)
        self.ended = True

    async def extend_lease(self) -> None:
        await asyncio.sleep(0)


class Streams:
    """Gives one item, and keeps results."""

    def __init__(self, item: Item) -> None:
        self.items = [item]
        self.results: dict[ItemKey, WorkResult] = {}

    async def list_queues(self) -> set[str]:
        await asyncio.sleep(0)
        return {each.stored.queue for each in self.items}

    async def take_items(self, queue: str, most: int, wait_s: float) -> list[TakenItem]:
        await asyncio.sleep(0.01)
        taken = [each for each in self.items if each.stored.queue == queue][:most]
        self.items = [each for each in self.items if each not in taken]
        return [cast("TakenItem", each) for each in taken]

    async def write_once(self, key: ItemKey, result: WorkResult) -> WorkResult:
        await asyncio.sleep(0)
        return self.results.setdefault(key, result)


@pytest.mark.parametrize("age_s", [1, 120])
async def test_an_item_of_an_unknown_queue_waits_a_while_and_is_refused_then(age_s: int) -> None:
    item = Item()
    streams = Streams(item)
    tools = SimpleNamespace(
        metrics=BatchMetrics(CollectorRegistry(), lambda: 0, lambda: 0),
        slots=SimpleNamespace(pace=SimpleNamespace(limit=4)),
    )
    runner = WorkRunner(
        cast("RunTools", tools),
        cast("WorkStreams", streams),
        lambda: {"nightly": WorkQueue()},
        lambda: STORED_MS + age_s * 1000,
        at_once=4,
    )
    running = asyncio.create_task(runner.run_items())
    await eventually(lambda: item.returned or item.ended)
    if age_s == 1:
        # Replicas get a new configuration one by one.
        assert (len(item.returned), item.ended, streams.results) == (1, False, {})
    else:
        [(key, result)] = streams.results.items()
        assert (key, result.error, result.id) == (ItemKey("unheard-of", "-", "a"), "invalid_item", "a")
        assert "no queue" in result.message
        assert (item.returned, item.ended) == ([], True)
    running.cancel()
    await asyncio.wait([running])
    await runner.close()
