"""A key-value bucket in memory."""

import asyncio
import fnmatch
from collections.abc import Callable

from pointsman_runtime.jetstream.watched_keys import Entry


class FakeBucket:
    """Every watcher sees a change at once. `broken`: reading and writing fail; `listing`: a new watch lists what there
    is at once, otherwise with `list_now`."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.watchers: list[Callable[[Entry], None]] = []
        self.broken = False
        self.listing = True
        self._unlisted: list[Callable[[], None]] = []

    async def get(self, key: str) -> Entry | None:
        if self.broken:
            raise TimeoutError
        return self.entries.get(key)

    async def put(self, key: str, value: bytes) -> int:
        before = self.entries.get(key)
        return await self.replace(key, value, before.revision if before else 0) or 0

    async def replace(self, key: str, value: bytes, revision: int) -> int | None:
        await asyncio.sleep(0)
        if self.broken:
            raise TimeoutError
        before = self.entries.get(key)
        if (before.revision if before else 0) != revision:
            return None
        self.entries[key] = Entry(key, value, sum(each.revision for each in self.entries.values()) + 1)
        for watcher in self.watchers:
            watcher(self.entries[key])
        return self.entries[key].revision

    async def delete(self, key: str) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise TimeoutError
        self.entries.pop(key, None)

    async def list_keys(self, pattern: str) -> list[str]:
        await asyncio.sleep(0)
        if self.broken:
            raise TimeoutError
        return fnmatch.filter(self.entries, pattern)

    async def purge_keys(self, pattern: str) -> None:
        for key in await self.list_keys(pattern):
            del self.entries[key]

    def watch(
        self,
        on_put: Callable[[Entry], None],
        on_gone: Callable[[str], None],
        on_listed: Callable[[], None] | None = None,
    ) -> None:
        del on_gone

        def list_all() -> None:
            for entry in self.entries.values():
                on_put(entry)
            self.watchers.append(on_put)
            if on_listed is not None:
                on_listed()

        self._unlisted.append(list_all)
        if self.listing:
            self.list_now()

    def list_now(self) -> None:
        """Complete the listings that are under way."""
        unlisted, self._unlisted = self._unlisted, []
        for list_all in unlisted:
            list_all()
