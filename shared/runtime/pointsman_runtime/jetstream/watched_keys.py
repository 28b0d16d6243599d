"""The keys that a watch of a bucket has seen, and when each was renewed. Time is an argument."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from nats.js.kv import KeyValue

from pointsman_runtime.telling.logs import Log

_log = Log("buckets")


class Entry(NamedTuple):
    """One value of a key."""

    key: str
    value: bytes
    revision: int


class WatchedKeys:
    """The keys of one watch. What `on_put`, `on_gone` and `on_listed` raise is logged."""

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
        """Key → revision and time of the entry that was reported last."""
        self._unseen: set[str] = set()
        """Keys that count as gone unless the current listing has them."""
        self.interrupted = False
        """Whether there was a time since the last listing in which no key could be renewed."""

    def begin_listing(self, now: float) -> None:
        if self._ttl_s is None:
            self._unseen = set(self._renewed)
            return
        if self.interrupted:
            # A server that was unavailable, or lost the bucket, accepted no renewals: live keys get the whole TTL
            # again.
            self._renewed = dict.fromkeys(self._renewed, now)
            self.interrupted = False
        self._unseen = self.overdue_keys(now)

    def end_listing(self) -> None:
        """The listing is complete: keys that it lacks, and overdue keys, are gone."""
        for key in self._unseen:
            self._gone(key)
        self._unseen.clear()
        if self._on_listed is not None:
            self._notify_watcher(self._on_listed, "")

    def update(self, entry: KeyValue.Entry, now: float) -> None:
        """One entry of the listing, or a change."""
        key, revision, stored = entry.key, entry.revision or 0, _stored(entry.created)
        known, known_stored = self._told.get(key, (0, 0.0))
        # A bucket that was created again counts from 1: entries from before the loss of the connection aren't newer.
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
        self._notify_watcher(lambda: self._on_put(told), key)

    def overdue_keys(self, now: float) -> set[str]:
        """Keys that were not renewed in time."""
        if self._ttl_s is None:
            return set()
        return {key for key, renewed in self._renewed.items() if now - renewed > self._ttl_s}

    def _gone(self, key: str) -> None:
        self._told.pop(key, None)
        if self._renewed.pop(key, None) is not None:
            self._notify_watcher(lambda: self._on_gone(key), key)

    def _notify_watcher(self, watcher: Callable[[], None], key: str) -> None:
        try:
            watcher()
        except Exception as error:  # noqa: BLE001 - one bad entry must not end the watch
            _log.error("watcher_failed", error, bucket=self._bucket, key=key)


def _stored(created: object) -> float:
    """When the server stored an entry, by its clock, in s since 1970. nats-py declares a number and gives the time."""
    return created.timestamp() if isinstance(created, datetime) else 0.0
