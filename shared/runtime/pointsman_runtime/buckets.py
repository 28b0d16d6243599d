"""Key-value buckets: the configuration and the registered workers. What is in them may lag; no request waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, NamedTuple

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoStreamResponseError, NotFoundError
from nats.js.kv import KeyValue

from pointsman_runtime.cancellation import end_all
from pointsman_runtime.events import Events, try_until_done
from pointsman_runtime.logs import Log

LOOK_S: Final = 0.5
"""How often a watch looks whether a key is overdue."""
LISTED_WITHIN_S: Final = 5.0
"""Sooner than that it doesn't look while the listing isn't complete."""
UNWATCHED_S: Final = 10.0
"""So long after the end of a watch the server keeps its consumer."""

_log = Log("buckets")


class Entry(NamedTuple):
    """One value of a key."""

    key: str
    value: bytes
    revision: int


class Bucket:
    """One bucket. It is made when it isn't there."""

    def __init__(
        self, events: Events, name: str, *, ttl_s: float | None = None, history: int = 1, replicas: int = 1
    ) -> None:
        self.name = name
        self._events = events
        self._ttl_s = ttl_s
        self._history = history
        self._replicas = replicas
        self._store: KeyValue | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # A server that comes back may have lost the bucket.
        events.on_connected(self._forget)

    async def put(self, key: str, value: bytes) -> int:
        """Write; returns the revision. Raises nats errors and TimeoutError when JetStream can't."""
        return await self._write(lambda store: store.put(key, value))

    async def replace(self, key: str, value: bytes, revision: int) -> int | None:
        """Write if this is still the key's revision (0: there is no such key); returns the new one, None when somebody
        else wrote. Raises as `put`."""
        try:
            return await self._write(lambda store: store.update(key, value, last=revision))
        except KeyWrongLastSequenceError:
            return None

    async def delete(self, key: str) -> None:
        """Remove; watchers are told. Raises as `put`."""
        await (await self._open()).delete(key)

    async def get(self, key: str) -> Entry | None:
        """Read; None when there is no such key. Raises as `put`."""
        try:
            found = await (await self._open()).get(key)
        except KeyNotFoundError:
            return None
        return Entry(found.key, found.value or b"", found.revision or 0)

    def watch(
        self,
        on_put: Callable[[Entry], None],
        on_gone: Callable[[str], None],
        on_listed: Callable[[], None] | None = None,
        *,
        with_history: bool = False,
    ) -> None:
        """Tell of every entry there is, then of every change, in order, across reconnections.

        `on_listed` is told after each complete listing: the first, one after every reconnection, and where there is a
        TTL, whenever a key is overdue.
        `on_gone` is told of deleted keys, of keys not renewed within the bucket's TTL, and where there is none, of keys
        that disappeared while the connection was lost. What any of them raises is logged, and the next entry comes.
        """
        watch = _Watch(self.name, on_put, on_gone, on_listed, self._ttl_s)
        task = asyncio.get_running_loop().create_task(self._keep_watching(watch, with_history))
        self._tasks.add(task)

    async def close(self) -> None:
        """End all watches."""
        await end_all(self._tasks)

    async def _write(self, write: Callable[[KeyValue], Awaitable[int]]) -> int:
        try:
            return await write(await self._open())
        except NoStreamResponseError:
            self._forget()  # somebody removed it: the next try makes it again
            raise

    async def _keep_watching(self, watch: "_Watch", with_history: bool) -> None:
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
                except (NatsError, TimeoutError):
                    self._forget()
                    watch.interrupted = True
                    raise
                try:
                    await self._follow(watcher, watch, again)
                finally:
                    if self._events.reason is None:
                        await watcher.stop()

            await try_until_done(f"watch of {self.name}", follow)

    async def _follow(self, watcher: KeyValue.KeyWatcher, watch: "_Watch", again: asyncio.Event) -> None:
        """Hand on updates until the connection was lost and is back, or a key is overdue; the watch then begins anew.

        Whether an overdue key is gone the server says: the consumer behind a watch ends with the server that it was on,
        which in a cluster isn't the one of this connection, and nobody tells.
        """
        now = time.monotonic()
        watch.begin(now)
        look_at = now + LISTED_WITHIN_S
        while not again.is_set():
            try:
                update = await watcher.updates(timeout=LOOK_S)
            except TimeoutError:
                pass
            else:
                if update is None:
                    watch.complete()
                    look_at = 0.0
                elif isinstance(update, KeyValue.Entry):
                    watch.update(update, time.monotonic())
            now = time.monotonic()
            if now >= look_at and self._events.reason is None:
                look_at = now + LOOK_S
                if watch.overdue(now):
                    return

    async def _open(self) -> KeyValue:
        if self._store is None:
            js = await self._events.jetstream()
            try:
                self._store = await js.key_value(self.name)
            except NotFoundError:
                config = KeyValueConfig(
                    bucket=self.name, history=self._history, ttl=self._ttl_s, replicas=self._replicas
                )
                self._store = await js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                _log.info("bucket_created", bucket=self.name)
        return self._store

    def _forget(self) -> None:
        self._store = None


class _Watch:
    """What a watcher knows: which keys live, when each was renewed."""

    def __init__(
        self,
        bucket: str,
        on_put: Callable[[Entry], None],
        on_gone: Callable[[str], None],
        on_listed: Callable[[], None] | None,
        ttl_s: float | None,
    ) -> None:
        self._bucket = bucket
        self._on_put = on_put
        self._on_gone = on_gone
        self._on_listed = on_listed
        self._ttl_s = ttl_s
        self._renewed: dict[str, float] = {}
        self._told: dict[str, tuple[int, float]] = {}
        """Key → revision and time of the entry that was told last."""
        self._unseen: set[str] = set()
        """What is gone unless the listing under way says otherwise."""
        self.interrupted = False
        """Since the last listing nothing could be renewed for a while."""

    def begin(self, now: float) -> None:
        """A new listing begins."""
        if self._ttl_s is None:
            self._unseen = set(self._renewed)
            return
        if self.interrupted:
            # A server that was away, or lost the bucket, took no renewals: what lives has as long as ever to renew.
            self._renewed = dict.fromkeys(self._renewed, now)
            self.interrupted = False
        self._unseen = self.overdue(now)

    def complete(self) -> None:
        """The listing is complete: what it didn't name, or had to be renewed and isn't, is gone."""
        for key in self._unseen:
            self._gone(key)
        self._unseen.clear()
        if self._on_listed is not None:
            self._tell(self._on_listed, "")

    def update(self, entry: KeyValue.Entry, now: float) -> None:
        """One entry of the listing, or a change."""
        key, revision, stored = entry.key, entry.revision or 0, _stored(entry.created)
        known, known_stored = self._told.get(key, (0, 0.0))
        # A bucket made anew counts from 1 again: what was told before the connection was lost is no newer either.
        newer = revision > known or stored > known_stored
        if newer or self._ttl_s is None:
            self._unseen.discard(key)
        if not newer:
            return
        if entry.operation is not None:
            self._gone(key)
            return
        self._renewed[key] = now
        self._told[key] = revision, stored
        told = Entry(key, entry.value or b"", revision)
        self._tell(lambda: self._on_put(told), key)

    def overdue(self, now: float) -> set[str]:
        """Keys that nobody renewed in time."""
        if self._ttl_s is None:
            return set()
        return {key for key, renewed in self._renewed.items() if now - renewed > self._ttl_s}

    def _gone(self, key: str) -> None:
        self._told.pop(key, None)
        if self._renewed.pop(key, None) is not None:
            self._tell(lambda: self._on_gone(key), key)

    def _tell(self, watcher: Callable[[], None], key: str) -> None:
        try:
            watcher()
        except Exception as error:  # noqa: BLE001 - one bad entry must not end the watch
            _log.error("watcher_failed", error, bucket=self._bucket, key=key)


def _stored(created: object) -> float:
    """When the server stored an entry, by its clock, in s since 1970. nats-py declares a number and gives the time."""
    return created.timestamp() if isinstance(created, datetime) else 0.0
