"""Sees a service's messages on the bus and its entries in the buckets, from outside."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import BucketNotFoundError, KeyNotFoundError

from pointsman_contracts.message import Message
from pointsman_contracts.subjects import kv_key
from pointsman_contracts.worker import WorkerRegistration
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_runtime.telling.process import Process

M = TypeVar("M", bound=Message)


class Observer:
    """Listens on a connection of its own."""

    def __init__(self, bus: Bus, js: JetStreamContext) -> None:
        self.bus = bus
        """Publishes a test's messages to a service."""
        self.js = js

    def listen(self, message: type[M], *route: str) -> list[M]:
        """Every message of this type from here on, in a list that grows."""
        heard: list[M] = []
        self.bus.listen(message, heard.append, *route)
        return heard

    async def make_workers_bucket(self) -> None:
        """Make the bucket of workers, as a scheduler or a metrics-collector does; agents don't."""
        config = KeyValueConfig(bucket=WorkerRegistration.address.bucket, storage=StorageType.MEMORY)
        await self.js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def entry(self, message: type[M], *route: str) -> M | None:
        """The value of a key; None when the key doesn't exist."""
        try:
            store = await self.js.key_value(message.address.bucket)
            found = await store.get(kv_key(message, *route))
        except (BucketNotFoundError, KeyNotFoundError):
            return None
        return message.decode(found.value or b"")


@asynccontextmanager
async def observing(url: str) -> AsyncGenerator[Observer]:
    """An observer on this server."""
    bus = Bus(Connection([url], name="observer"), Process("observer", "observer-1"))
    client = LastingClient()  # nats-py's own leaves the sockets of failed handshakes open when the server is killed
    # nats-py says that the seconds of a wait are an `int`.
    await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    bus.open()
    await bus.wait_connected()
    try:
        yield Observer(bus, client.jetstream(timeout=30))  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    finally:
        await bus.close()
        await client.close()
