"""Objects that are slow to make, such as embedders: one for each set of settings, made once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from pointsman_core.config import Section
from pointsman_runtime.telling.logs import Log


class Closable(Protocol):
    """An object that holds connections or threads."""

    name: str

    async def close(self) -> None:
        """Release what it holds; it isn't used again."""
        ...


S = TypeVar("S", bound=Section)
M = TypeVar("M", bound=Closable)


class MadeOnce(Generic[S, M]):
    """Makes each object once; making one that failed is retried with the next configuration."""

    def __init__(
        self,
        what: str,
        make: Callable[[S], Awaitable[M]],
        unavailable: type[Exception],
        *,
        without: str,
        hint: Callable[[S], str] = lambda _: "",
    ) -> None:
        """`what`: its name in the log. `make` raises `unavailable`. `without`: what happens then. `hint`: what else the
        operator should know of one that is made."""
        self._what: Final = what
        self._make: Final = make
        self._unavailable: Final = unavailable
        self._without: Final = without
        self._hint: Final = hint
        self._log: Final = Log(what)
        self._made: Final[dict[S, asyncio.Task[M | None]]] = {}
        self._problems: Final[dict[S, str]] = {}

    def prepare(self, wanted: Iterable[S]) -> None:
        """Begin to make these."""
        for settings in self._problems:
            self._made.pop(settings, None)
        self._problems.clear()
        for settings in wanted:
            self._begin(settings)

    async def get(self, settings: S) -> M:
        """The object of these settings. Raises `unavailable`."""
        made = await asyncio.shield(self._begin(settings))
        if made is None:
            raise self._unavailable(self._problems.get(settings, "loading it is retried"))
        return made

    async def close(self) -> None:
        for task in self._made.values():
            made = await task
            if made is not None:
                await made.close()

    def _begin(self, settings: S) -> "asyncio.Task[M | None]":
        task = self._made.get(settings)
        if task is None:
            task = self._made[settings] = asyncio.get_running_loop().create_task(self._tried(settings))
        return task

    async def _tried(self, settings: S) -> M | None:
        try:
            made = await self._make(settings)
        except self._unavailable as problem:
            self._problems[settings] = str(problem)
            self._log.error(f"{self._what}_unavailable", reason=str(problem), hint=self._without)
            return None
        self._log.info(f"{self._what}_ready", name=made.name, hint=self._hint(settings))
        return made
