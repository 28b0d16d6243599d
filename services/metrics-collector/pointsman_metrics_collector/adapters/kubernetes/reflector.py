"""Keeps one collection of a cluster's objects current: by a list, a watch, and another list when a watch can't
continue.

No client library for asyncio does that: after 410 Gone their watches continue from the present, and an object that was
deleted meanwhile is kept for ever (docs/adr/0008-the-cluster-is-listed-and-watched-here.md).
"""

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic

from pointsman_metrics_collector.domain.kubernetes.answers import (
    FORBIDDEN,
    Lines,
    ListPage,
    ListRefused,
    Unreachable,
    UnreadableAnswer,
    WatchEvent,
    advised,
    gone,
    read_change,
)
from pointsman_metrics_collector.domain.kubernetes.collections import Collection, Seen, T
from pointsman_runtime.telling.logs import Log

if TYPE_CHECKING:
    # Only processes with a cluster load the client library.
    from pointsman_metrics_collector.adapters.kubernetes.api import KubernetesApi

RELIST_S: Final = 300.0
"""Seconds between lists even when nothing went wrong: a list brings back any change that a watch missed."""
ABSENT_S: Final = 60.0
"""Seconds between requests for a kind that the cluster doesn't know."""
POLL_S: Final = 10.0
"""Seconds between lists while the role doesn't allow a watch."""
BASE_S: Final = 0.2
CAP_S: Final = 15.0
LONGEST_RETRY_S: Final = 60.0
"""However long the server would have it."""
SHORTEST_S: Final = 1.0
"""Between the beginnings of two watches: a server that ends each at once isn't asked in a loop."""

_log = Log("kubernetes")


class Reflector(Generic[T]):
    """Owned by one task, which runs `run`. `on_change` is called whenever `seen` changes."""

    def __init__(
        self,
        api: "KubernetesApi",
        collection: Collection[T],
        on_change: Callable[[], None],
        *,
        relist_s: float = RELIST_S,
        shortest_s: float = SHORTEST_S,
        poll_s: float = POLL_S,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.seen: Seen[T] = Seen()
        self.lists = 0
        """Lists that were taken whole."""
        self._api: Final = api
        self._collection: Final = collection
        self._on_change: Final = on_change
        self._relist_s: Final = relist_s
        self._shortest_s: Final = shortest_s
        self._poll_s: Final = poll_s
        self._uniform: Final = uniform
        self._objects: dict[str, T] = {}
        self._unreadable: set[str] = set()
        self._version = ""
        self._unlisted = ""
        """Why the objects can't be listed, only watched; empty when they can."""
        self._unwatched = ""
        """Why they can't be watched, only listed; empty when they can."""
        self._failures = 0

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                await self._list_if_allowed()
                await self._follow()
            except (Unreachable, ListRefused, UnreadableAnswer) as error:
                await self._failed(error)

    async def _list_if_allowed(self) -> None:
        """A list, or the known state when the role allows only watching."""
        try:
            await self._list()
        except ListRefused as error:
            if error.code != FORBIDDEN:
                raise
            self._not_listed(error)

    async def _list(self) -> None:
        objects: dict[str, T] = {}
        unreadable: set[str] = set()
        page = await self._api.list_page(self._collection)
        _take(page, objects, unreadable)
        while page.rest:
            try:
                page = await self._api.list_page(self._collection, page.rest)
            except ListRefused as error:
                if not gone(error):
                    raise
                # The list expired between two pages; a whole one can't.
                objects, unreadable = {}, set()
                page = await self._api.list_page(self._collection, whole=True)
            _take(page, objects, unreadable)
        self._objects, self._unreadable, self._version = objects, unreadable, page.version
        self.lists += 1
        self._unlisted = ""
        self._show()

    async def _follow(self) -> None:
        """Watch until a new list is needed."""
        loop = asyncio.get_running_loop()
        nothing_known = self.seen.objects is None
        relist_at = loop.time() + (min(self._relist_s, self._poll_s) if nothing_known else self._relist_s)
        watched = False
        while loop.time() < relist_at:
            began = loop.time()
            try:
                async with asyncio.timeout_at(relist_at):
                    if watched and await self._may_list_again():
                        return
                    watched = True
                    await self._watch()
            except TimeoutError:
                return
            except (Unreachable, ListRefused, UnreadableAnswer) as error:
                if isinstance(error, ListRefused) and error.code == FORBIDDEN:
                    if self._unlisted:
                        raise
                    await self._poll(error)
                    return
                if isinstance(error, Unreachable) or not gone(error):
                    await self._failed(error)
                    continue
                if self._unlisted:
                    self._version = ""  # a watch from no version begins with what there is
                _log.info("kubernetes_list_expired", what=str(self._collection), reason=str(error))
                await self._pause()
                return
            self._failures = 0
            await asyncio.sleep(max(0.0, began + self._shortest_s - loop.time()))

    async def _may_list_again(self) -> bool:
        """Between two watches: notices a lost right to list long before the next list is due, and uses one that came
        back."""
        try:
            await self._api.may_list(self._collection)
        except ListRefused as error:
            if error.code != FORBIDDEN:
                raise
            self._not_listed(error)
            return False
        return bool(self._unlisted)

    def _not_listed(self, error: ListRefused) -> None:
        self._unlisted = f"{self._collection}: only watched, deletions may be missed: {advised(error)}"
        self._show_old(self._shortcomings())

    async def _poll(self, error: ListRefused) -> None:
        """Wait until the next list, which replaces the watch."""
        self._unwatched = f"{self._collection}: listed every {self._poll_s:g} s, not watched: {advised(error)}"
        self._show_old(self._shortcomings())
        await asyncio.sleep(self._poll_s)

    async def _watch(self) -> None:
        """One watch, to its end."""
        lines = Lines()
        async with self._api.watch_collection(self._collection, self._version) as answer:
            self._unwatched = ""
            if self._version:
                self._show()
            async for data in answer:
                self._failures = 0
                changed = False
                for line in lines.split_lines(data):
                    changed = self._apply(read_change(self._collection.kind, line)) or changed
                if changed:
                    self._show()

    def _apply(self, change: WatchEvent[T]) -> bool:
        """Apply an event; returns whether it was more than a bookmark."""
        self._version = change.version
        if not change.name:
            return False
        self._unreadable.discard(change.name)
        if change.object is not None:
            self._objects[change.name] = change.object
            return True
        if change.unreadable:
            self._unreadable.add(change.name)
        self._objects.pop(change.name, None)
        return True

    def _show(self, problem: str = "") -> None:
        """Publish the current finding."""
        problem = problem or self._shortcomings()
        before = self.seen
        self.seen = Seen(dict(self._objects), problem)
        if before.problem != problem:
            if problem:
                _log.warning("kubernetes_not_current", what=str(self._collection), reason=problem)
            else:
                _log.info("kubernetes_current", what=str(self._collection), objects=len(self._objects))
        if before != self.seen:
            self._on_change()

    def _shortcomings(self) -> str:
        """The problems while the server answers."""
        unreadable = ""
        if self._unreadable:
            names = ", ".join(sorted(self._unreadable)[:5])
            unreadable = f"{self._collection}: objects that don't match their kind: {names}"
        return "; ".join(filter(None, (self._unlisted, self._unwatched, unreadable)))

    async def _failed(self, error: Unreachable | ListRefused | UnreadableAnswer) -> None:
        """Keep the known state, mark it as stale, and wait."""
        absent = isinstance(error, ListRefused) and error.code == 404 and self._collection.optional
        # A kind that is taken away has its objects deleted first; a server that only begins forgets it for a moment.
        if absent and not self._objects:
            self._unreadable.clear()
            self._show()
            await asyncio.sleep(ABSENT_S)
            return
        self._show_old(f"{self._collection}: {advised(error)}")
        await self._pause(min(error.retry_after_s, LONGEST_RETRY_S) if isinstance(error, ListRefused) else 0.0)

    async def _pause(self, least_s: float = 0.0) -> None:
        """Wait longer with every failure in a row (full jitter, as `pointsman_runtime.bus.backoff`)."""
        wait = self._uniform(0.0, min(CAP_S, BASE_S * 2.0 ** min(self._failures, 10)))
        self._failures += 1
        await asyncio.sleep(max(wait, least_s))

    def _show_old(self, problem: str) -> None:
        if self.seen.objects is not None:
            self._show(problem)
        elif self.seen.problem != problem:
            self.seen = Seen(None, problem)
            _log.warning("kubernetes_not_current", what=str(self._collection), reason=problem)
            self._on_change()


def _take(page: ListPage[T], objects: dict[str, T], unreadable: set[str]) -> None:
    objects.update({each.metadata.name: each for each in page.objects})
    unreadable.update(page.unreadable)
