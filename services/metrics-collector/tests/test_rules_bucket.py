"""The cluster's rules are in the bucket, written by one collector."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.errors import NoServersError

from pointsman_contracts.pool import PoolRules
from pointsman_metrics_collector.adapters.rules_bucket import RulesBucket
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_testing import eventually

ALL = {"c-1", "c-2"}


class Bucket:
    """In memory; every watcher gets each change."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.writes = 0
        self.broken = False
        self.watchers: list[RulesBucket] = []

    async def put(self, key: str, value: bytes) -> int:
        if self.broken:
            raise NoServersError
        self.writes += 1
        self.entries[key] = value
        for watcher in self.watchers:
            watcher.note_entry(Entry(key, value, self.writes))
        return self.writes

    async def delete(self, key: str) -> None:
        del self.entries[key]
        for watcher in self.watchers:
            watcher.note_entry_gone(key)


@asynccontextmanager
async def collectors(bucket: Bucket, findings: dict[str, EngineSource], pools: set[str]) -> AsyncGenerator[None]:
    bucket.watchers = [
        RulesBucket(bucket, lambda: findings, lambda: pools, instance, lambda _pool: ALL) for instance in sorted(ALL)
    ]
    for watcher in bucket.watchers:
        for key, value in bucket.entries.items():
            watcher.note_entry(Entry(key, value, 1))
        watcher.end_listing()
    tasks = [asyncio.create_task(watcher.run()) for watcher in bucket.watchers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def finding(priority: int, problem: str = "") -> EngineSource:
    return EngineSource("kubernetes", problem=problem, rules=PoolRules(pool="p", objectives={"vip": priority}))


async def test_one_collector_writes_what_changed_and_removes_what_no_pool_says() -> None:
    bucket, findings, pools = Bucket(), {"p": finding(5)}, {"p"}
    bucket.entries["left-behind"] = PoolRules(pool="left-behind").encode()
    async with collectors(bucket, findings, pools):
        await eventually(lambda: list(bucket.entries) == ["p"])
        assert PoolRules.decode(bucket.entries["p"]).objectives == {"vip": 5}
        assert bucket.writes == 1
        findings["p"] = finding(6)
        await eventually(lambda: PoolRules.decode(bucket.entries["p"]).objectives == {"vip": 6})
        assert bucket.writes == 2
        pools.clear()
        await eventually(lambda: not bucket.entries)


async def test_rules_that_may_be_old_are_not_written_and_failed_writes_are_tried_again() -> None:
    bucket, findings = Bucket(), {"p": finding(5, problem="the API server isn't reached"), "q": finding(1)}
    bucket.broken = True
    async with collectors(bucket, findings, {"p", "q"}):
        await asyncio.sleep(0)
        bucket.broken = False
        await eventually(lambda: list(bucket.entries) == ["q"])
