"""Key-value buckets: the configuration and the registered workers. Their content may lag; no request waits for them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, cast

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError, NotFoundError
from nats.js.kv import KeyValue

from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.jetstream.events import Events, try_until_done
from pointsman_runtime.jetstream.stores import DESCRIPTIONS
from pointsman_runtime.jetstream.watched_keys import Entry, WatchedKeys
from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 0.5
"""How often a watch looks whether a key is overdue."""
LISTED_WITHIN_S: Final = 5.0
"""Sooner than that it doesn't look while the listing isn't complete."""
UNWATCHED_S: Final = 10.0
"""So long after the end of a watch the server keeps its consumer."""
ASKED_EVERY_S: Final = 2.0
"""How often a watch checks that its consumer exists: deleting the bucket or restarting JetStream removes it, and the
server doesn't report that."""

_log = Log("buckets")


class BucketMissing(NatsError):
    """No service has made the bucket yet, and this one doesn't make it."""


class Bucket:
    """One bucket. It is made when the server has none."""

    def __init__(
        self,
        events: Events,
        name: str,
        *,
        ttl_s: float | None = None,
        history: int = 1,
        replicas: int = 1,
        in_memory: bool = False,
        make: bool = True,
        max_bytes: int | None = None,
    ) -> None:
        """`in_memory`: a server that restarts has lost it, and one whose disk is full still takes writes.
        `make`: False for a service that may not choose the bucket's settings; until another service has made the
        bucket, calls raise BucketMissing. `max_bytes`: a bucket
        that has so many takes no more; only where this service makes it."""
        self.name = name
        self._events = events
        self._ttl_s = ttl_s
        self._history = history
        self._replicas = replicas
        self._make = make
        self._max_bytes = max_bytes
        self._storage = StorageType.MEMORY if in_memory else StorageType.FILE
        self._store: KeyValue | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # A server that restarted may have lost the bucket.
        events.on_connected(self._forget)

    async def put(self, key: str, value: bytes) -> int:
        """Write; returns the revision. Raises nats errors and TimeoutError when JetStream can't."""
        return await self._write(lambda store: store.put(key, value))

    async def replace(self, key: str, value: bytes, revision: int) -> int | None:
        """Write if this is still the key's revision (0: there is no such key); returns the new one, None when another
        writer was first. Raises what `put` raises."""
        try:
            return await self._write(lambda store: store.update(key, value, last=revision))
        except KeyWrongLastSequenceError:
            return None

    async def delete(self, key: str) -> None:
        """Remove; watches report it. Raises what `put` raises."""
        await (await self._open()).delete(key)

    async def get(self, key: str) -> Entry | None:
        """Read; None when there is no such key. Raises what `put` raises."""
        try:
            found = await (await self._open()).get(key)
        except KeyNotFoundError:
            return None
        return Entry(found.key, found.value or b"", found.revision or 0)

    async def list_keys(self, pattern: str) -> list[str]:
        """The keys that match, e.g. `a.*`; none where there is no bucket yet. Raises what `put` raises."""
        store = await self._open()
        watcher = await store.watch(pattern, ignore_deletes=True, meta_only=True, inactive_threshold=UNWATCHED_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        found: list[str] = []
        try:
            while (update := await watcher.updates(timeout=LISTED_WITHIN_S)) is not None:
                if isinstance(update, KeyValue.Entry):
                    found.append(update.key)
        finally:
            if self._events.reason is None:
                await watcher.stop()
        return found

    async def purge_keys(self, pattern: str) -> None:
        """Remove the keys that match, e.g. `a.*`, without a trace. Raises what `put` raises."""
        await self._open()
        js = await self._events.jetstream()
        await js.purge_stream(f"KV_{self.name}", subject=f"$KV.{self.name}.{pattern}")

    def watch(
        self,
        on_put: Callable[[Entry], None],
        on_gone: Callable[[str], None],
        on_listed: Callable[[], None] | None = None,
        *,
        with_history: bool = False,
    ) -> None:
        """Report every entry, then every change, in order, across reconnections.

        `on_listed` is called after each complete listing: the first, one after every reconnection, and with a TTL one
        whenever a key is overdue.
        `on_gone` is called for deleted keys and for keys not renewed within the bucket's TTL; without a TTL, for keys
        that disappeared while the connection was lost. An error in any of them is logged, and the watch continues.
        """
        watch = WatchedKeys(self.name, on_put, on_gone, on_listed, self._ttl_s)
        task = asyncio.get_running_loop().create_task(self._keep_watching(watch, with_history))
        self._tasks.add(task)

    async def close(self) -> None:
        """End all watches."""
        await end_all(self._tasks)

    async def _write(self, write: Callable[[KeyValue], Awaitable[int]]) -> int:
        try:
            return await write(await self._open())
        except NoStreamResponseError:
            self._forget()  # it was removed: the next try makes it again
            raise

    async def _keep_watching(self, watch: WatchedKeys, with_history: bool) -> None:
        again = asyncio.Event()

        def reconnected() -> None:
            watch.interrupted = True
            again.set()

        self._events.on_connected(reconnected)
        while True:

            async def follow() -> None:
                again.clear()
                try:
                    store = await self._open()
                    watcher = await store.watch(">", include_history=with_history, inactive_threshold=UNWATCHED_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                    try:
                        await self._follow(watcher, watch, again)
                    finally:
                        if self._events.reason is None:
                            await watcher.stop()
                except (NatsError, TimeoutError):
                    self._forget()
                    watch.interrupted = True
                    raise

            await try_until_done(f"watch of {self.name}", follow)

    async def _follow(self, watcher: KeyValue.KeyWatcher, watch: WatchedKeys, again: asyncio.Event) -> None:
        """Pass updates on until the connection was lost and is made again, or a key is overdue; the watch then begins
        again. Raises nats errors and TimeoutError when the consumer doesn't exist, or JetStream doesn't answer.

        Only a new listing shows whether an overdue key is gone. The consumer of a watch ends with its server, which in
        a cluster may be another one than this connection's; such an end isn't reported. Nor is an update that is lost
        between two servers: when one that the consumer has sent hasn't come by the next question, the watch begins
        again."""
        # The attribute is private in nats-py and typed as None, although `watch` has set it.
        subscription = cast("JetStreamContext.PushSubscription", watcher._sub)  # pyright: ignore[reportPrivateUsage]
        now = time.monotonic()
        watch.begin_listing(now)
        look_at = now + LISTED_WITHIN_S
        ask_at = now + ASKED_EVERY_S
        seen = unseen = 0
        while not again.is_set():
            try:
                update = await watcher.updates(timeout=LOOK_S)
            except TimeoutError:
                pass
            else:
                if update is None:
                    watch.end_listing()
                    look_at = 0.0
                elif isinstance(update, KeyValue.Entry):
                    seen = update.revision or 0
                    watch.update(update, time.monotonic())
            now = time.monotonic()
            if now >= look_at and self._events.reason is None:
                look_at = now + LOOK_S
                if watch.overdue_keys(now):
                    return
            if now >= ask_at and self._events.reason is None:
                sent = (await subscription.consumer_info()).delivered
                # A consumer that has sent nothing names the place where it began.
                last = sent.stream_seq if sent is not None and sent.consumer_seq else seen
                if last > seen and unseen == last:
                    _log.warning("update_lost", bucket=self.name, revision=last)
                    watch.interrupted = True
                    return
                unseen = last if last > seen else 0
                ask_at = time.monotonic() + ASKED_EVERY_S

    async def _open(self) -> KeyValue:
        if self._store is None:
            js = await self._events.jetstream()
            try:
                self._store = await js.key_value(self.name)
            except NotFoundError:
                if not self._make:
                    raise BucketMissing(f"the bucket {self.name} doesn't exist yet") from None
                config = KeyValueConfig(
                    bucket=self.name,
                    description=DESCRIPTIONS.get(self.name),
                    history=self._history,
                    ttl=self._ttl_s,
                    replicas=self._replicas,
                    storage=self._storage,
                    max_bytes=self._max_bytes,
                )
                self._store = await js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                _log.info("bucket_created", bucket=self.name)
        return self._store

    def _forget(self) -> None:
        self._store = None
