"""Reads the files that list endpoints, and reads them again when they change."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - one of its defaults is of anyio's

from pointsman_core.config import Config, ConfigError, Pool, load_endpoints
from pointsman_metrics_collector.domain.engines import engines_of
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.configuring.config_text import read
from pointsman_runtime.telling.logs import Log

LONGEST: Final = 4 * 2**20
"""Bytes of a file; ten thousand endpoints have less."""
LOOK_S: Final = 1.0
"""Seconds between looks at a file without a notification. Network file systems send none, and changes during the start
of the watch are missed."""
RETRY_S: Final = 1.0
"""Seconds between looks for a missing folder."""

_log = Log("files")


class EndpointFiles:
    """One task for each pool with a file. `on_finding` is called with each new finding of a pool."""

    def __init__(self, on_finding: Callable[[str, EngineSource], None], *, look_s: float = LOOK_S) -> None:
        self._on_finding: Final = on_finding
        self._look_s: Final = look_s
        self._pools: dict[str, Pool] = {}
        self._findings: dict[str, EngineSource] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow_files(self, config: Config) -> None:
        """Follow the files of this configuration."""
        pools = {name: pool for name, pool in config.pools.items() if pool.file is not None}
        for name in [name for name in self._tasks if pools.get(name) != self._pools.get(name)]:
            self._tasks.pop(name).cancel()
            if name not in pools:
                self._findings.pop(name, None)
        self._pools = pools
        for name, pool in pools.items():
            if name not in self._tasks:
                self._look(name, pool)
                folder = Path(pool.file or "").absolute().parent
                self._tasks[name] = asyncio.create_task(self._follow(name, pool, folder))

    async def stop(self) -> None:
        """End all of them."""
        await end_all(self._tasks.values())

    async def supervise(self) -> None:
        """Raise what ended a task; such an end is a fault of this program."""
        while True:
            for task in list(self._tasks.values()):
                if task.done() and not task.cancelled():
                    task.result()
            await asyncio.sleep(self._look_s)

    async def _follow(self, name: str, pool: Pool, folder: Path) -> None:
        while True:
            try:
                # The folder, because editors and ConfigMaps put another file in the place of the old one.
                async for _ in awatch(
                    folder,
                    watch_filter=None,
                    recursive=False,
                    debounce=50,
                    step=20,
                    rust_timeout=round(self._look_s * 1000),
                    yield_on_timeout=True,
                ):
                    self._look(name, pool)
            except OSError:
                self._look(name, pool)
                await asyncio.sleep(RETRY_S)

    def _look(self, name: str, pool: Pool) -> None:
        before = self._findings.get(name)
        try:
            engines = engines_of(name, pool, read(_text(Path(pool.file or "")), load_endpoints).engines)
            finding = EngineSource("file", engines)
        except (OSError, ValueError) as error:
            # ConfigError is a ValueError; so is a text that isn't UTF-8.
            known = before or EngineSource("file", answered=False)
            finding = replace(known, problem=f"{pool.file}: {_words(error)}")
        if finding == before:
            return
        self._findings[name] = finding
        if finding.problem:
            _log.warning("endpoint_file_refused", pool=name, reason=finding.problem, kept=len(finding.engines))
        else:
            _log.info("endpoint_file_read", pool=name, file=pool.file, endpoints=len(finding.engines))
        self._on_finding(name, finding)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise ConfigError([("", f"the file has more than {LONGEST} bytes")])
    return data.decode()


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).replace("\n", "; ")
