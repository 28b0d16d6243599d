"""The workers of every pool, as the metrics-collectors publish them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.aio.msg import Msg

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.timing import TIMES


class Workers:
    """The workers of every pool, as the metrics-collectors publish them."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], PoolSnapshot] = {}

    def receive_snapshot(self, snapshot: PoolSnapshot) -> None:
        """A snapshot arrived."""
        self._pools[snapshot.pool, snapshot.source] = snapshot

    def workers_of(self, pool: str) -> dict[str, WorkerView]:
        """The pool's workers by name."""
        return {view.worker: view for each in self._pools.values() if each.pool == pool for view in each.workers}

    def find_unreached(self, pool: str) -> dict[str, str]:
        """Engines of the pool that never answered, with the reason."""
        return {name: why for each in self._pools.values() if each.pool == pool for name, why in each.unreached.items()}

    def list_pools(self) -> list[str]:
        """Their names, sorted."""
        return sorted({pool for pool, _ in self._pools})


@asynccontextmanager
async def following(client: Client) -> AsyncGenerator[Workers]:
    """Receive snapshots for the length of a `with`; begins when every pool was heard."""
    workers = Workers()

    async def snapshot(message: Msg) -> None:
        try:
            workers.receive_snapshot(PoolSnapshot.decode(message.data))
        except MalformedMessage:
            return  # another version's; `pointsman doctor` reports versions

    subscription = await client.subscribe(subject(PoolSnapshot, ANY), cb=snapshot)  # pyright: ignore[reportUnknownMemberType] - nats-py
    await client.flush()
    await asyncio.sleep(1.2 * TIMES.snapshot_s)
    await client.flush()
    try:
        yield workers
    finally:
        await subscription.unsubscribe()
