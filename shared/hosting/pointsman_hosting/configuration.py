"""The configuration of the gateway as a process runs it: read, checked, compiled, swapped, kept."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Gauge

from pointsman_core.config import Config, ConfigError
from pointsman_runtime.configuring.config_text import located, parse
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log

KEPT: Final = 8
"""Compiled revisions that stay for requests that began with them."""

PATIENCE_S: Final = 2.0
LONGEST_PATIENCE_S: Final = 60.0

C = TypeVar("C")

_log = Log("configuration")


@dataclass(frozen=True)
class Revision(Generic[C]):
    """One revision, compiled to what the service runs."""

    number: int
    """Revision of the key in the bucket; 1 for a file."""
    config: Config
    policy_hash: str
    compiled: C


class _Revisions(dict[int, Revision[C]]):
    """The revisions that are kept, in the order in which they came."""

    newest: Revision[C] | None = None

    def __missing__(self, number: int) -> Revision[C]:
        if self.newest is None:
            raise LookupError("no configuration is loaded yet")
        return self.newest

    def add(self, revision: Revision[C]) -> None:
        self.pop(revision.number, None)  # in a bucket made anew numbers come again
        self[revision.number] = self.newest = revision
        while len(self) > KEPT:
            del self[next(iter(self))]


class Configuration(Generic[C]):
    """The current revision and the ones before it.

    A revision that doesn't parse or compile is refused and told, and everything stays as it is.
    """

    def __init__(self, compile: Callable[[Config, int], C], registry: CollectorRegistry) -> None:  # noqa: A002 - says it
        self._compile = compile
        self._revisions = _Revisions[C]()
        self.revisions: Final[Mapping[int, Revision[C]]] = self._revisions
        """The revision that a request began with, by its number, or the current one when that isn't kept, as its
        `number` shows. A lookup raises LookupError before there is one."""
        self._listeners: list[Callable[[Revision[C]], None]] = []
        self._loaded = asyncio.Event()
        self.refused: dict[int, str] = {}
        """Refused revisions, and why."""
        self._gauge = Gauge("pointsman_config_revision", "Configuration revision in use", registry=registry)
        self._refusals = Counter(
            "pointsman_config_refused", "Configuration revisions refused by this process", registry=registry
        )

    @property
    def current(self) -> Revision[C]:
        """The newest good revision. There always is one before a service takes work."""
        newest = self._revisions.newest
        if newest is None:
            raise LookupError("no configuration is loaded yet")
        return newest

    @property
    def missing(self) -> str | None:
        """Why there is no current revision; None when there is one."""
        if self._revisions.newest is not None:
            return None
        if self.refused:
            return f"revision {max(self.refused)} was refused: {self.refused[max(self.refused)]}"
        return "none received yet; `pointsman config apply` stores one"

    def on_change(self, listener: Callable[[Revision[C]], None]) -> None:
        """Call with every new current revision, the first included."""
        self._listeners.append(listener)

    async def wait_loaded(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for the first valid revision, and log the wait: soon, then less and less often."""
        while not self._loaded.is_set():
            try:
                async with asyncio.timeout(patience_s):
                    await self._loaded.wait()
            except TimeoutError:
                if self._loaded.is_set():  # it came in the same turn of the event loop
                    return
                _log.warning("configuration_missing", reason=self.missing)
                patience_s = min(2 * patience_s, LONGEST_PATIENCE_S)

    def offer_revision(self, number: int, text: str) -> bool:
        """Apply a revision, or refuse it; returns which."""
        try:
            config = parse(text)
            try:
                compiled = self._compile(config, number)
            except ConfigError as error:
                raise located(text, error) from error
            revision = Revision(number, config, config.policy_hash(), compiled)
        except Exception as error:  # noqa: BLE001 - what a plugin raises must not end the following of revisions
            # The text quotes the operator's file, never a request. ConfigError is a ValueError.
            problems = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            self.refused[number] = problems
            while len(self.refused) > KEPT:
                del self.refused[min(self.refused)]
            self._refusals.inc()
            _log.warning("config_refused", revision=number, problems=problems)
            return False
        self._revisions.add(revision)
        self._gauge.set(number)
        _log.info("config_applied", revision=number, policy_hash=revision.policy_hash)
        for listener in self._listeners:
            listener(revision)
        self._loaded.set()
        return True

    def offer_file(self, path: Path) -> None:
        """Load a file as revision 1. Raises ConfigError with the file's name before every problem."""
        if not self.offer_revision(1, path.read_text(encoding="utf-8")):
            raise ConfigError([(str(path), problem) for problem in self.refused[1].splitlines()])
