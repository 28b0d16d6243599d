"""Where the configurations of a process's services come from: watched once, given to each."""

from pathlib import Path
from typing import Protocol

from pointsman_hosting.configuration import KEPT
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY, HISTORY
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

_log = Log("configuration")


class Taker(Protocol):
    """A service's configuration."""

    def offer_revision(self, number: int, text: str) -> bool:
        """Take a revision over, or refuse it; returns which."""
        ...

    def offer_file(self, path: Path) -> None:
        """Load a file as revision 1. Raises ConfigError."""
        ...


class ConfigurationSource:
    """The bucket of revisions, or a file."""

    def __init__(self, events: Events, replicas: int) -> None:
        self._events = events
        self._replicas = replicas
        self._bucket: Bucket | None = None
        self._kept: dict[int, str] = {}
        """Revisions of the bucket, oldest first, for a service that asks later than others."""
        self._takers: list[Taker] = []
        self._complete = False

    def feed_revisions(self, taker: Taker, config: str) -> None:
        """Give it every revision: of the bucket when `config` is `kv`, else of the file that it names."""
        if config != "kv":
            taker.offer_file(Path(config))
            return
        self._takers.append(taker)
        if self._complete:
            for number, text in list(self._kept.items()):
                taker.offer_revision(number, text)
        elif self._bucket is None:
            self._bucket = Bucket(self._events, CONFIG_BUCKET, history=HISTORY, replicas=self._replicas)
            self._bucket.watch(self._put, self._gone, self._listed, with_history=True)

    async def close(self) -> None:
        """End the watch."""
        if self._bucket is not None:
            await self._bucket.close()

    def _put(self, entry: Entry) -> None:
        if entry.key != CONFIG_KEY:
            return
        text = entry.value.decode("utf-8", "replace")
        self._kept.pop(entry.revision, None)  # in a bucket made anew numbers come again
        self._kept[entry.revision] = text
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        if self._complete:
            for taker in self._takers:
                taker.offer_revision(entry.revision, text)

    def _listed(self) -> None:
        if self._complete:
            return
        self._complete = True
        for number, text in list(self._kept.items()):
            for taker in self._takers:
                taker.offer_revision(number, text)

    def _gone(self, key: str) -> None:
        if key == CONFIG_KEY:
            _log.warning("config_deleted", hint="the current configuration stays in use until another one is applied")
