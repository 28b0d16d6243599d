"""Watches one engine: its load, its current life, and whether it answers at all."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_engines.client import EngineClient, EngineRefused, EngineUnreachable
from pointsman_engines.dialect import ENGINES, Dialect, detect
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, FACTS_RETRY_S, EndpointWatch
from pointsman_engines.exposition import Exposition, UnreadableMetrics
from pointsman_engines.models import UnreadableModels
from pointsman_engines.pace import ReadingPace
from pointsman_engines.reading import CacheFacts, MissingMetrics, Reading, read, read_cache
from pointsman_engines.status import EngineFacts, EngineStatus, differs
from pointsman_runtime.telling.logs import Log

FACTS_INTERVAL_S: Final = 0.7
"""Adapters come and go while an engine runs; with the message on the bus, schedulers know it within a second."""
FACTS_TIMEOUT_S: Final = 2.0
ASLEEP: Final = "it sleeps: a request would wait until it is woken"
HEALTH_INTERVAL_S: Final = 1.0
HEALTH_TIMEOUT_S: Final = 5.0
"""Longer than for metrics: SGLang may generate a token before it answers."""

_log = Log("engine")


class EngineWatch(EndpointWatch):
    """Reads one engine. `engine` names the kind when it shouldn't be guessed from the metrics."""

    def __init__(
        self,
        client: EngineClient,
        on_status: Callable[[EngineStatus], None],
        *,
        engine: str | None = None,
        pace: ReadingPace,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        super().__init__(client, on_status, answer_timeout_s)
        self._engine = engine
        self._pace = pace
        self._dialect: Dialect | None = None
        self._asks_for_some = True
        self._unhealthy = ""
        self._version = ""
        self._cache = CacheFacts()
        self._cache_known = False
        self._facts_wanted = asyncio.Event()

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_reading())
            group.create_task(self._keep_checking_health())
            group.create_task(self._keep_learning_facts())

    async def _keep_reading(self) -> None:
        loop = asyncio.get_running_loop()
        gap = self._pace.idle_s
        while True:
            started = loop.time()
            before = self.status
            await self._look()
            gap = self._pace.next_gap(gap, changed=differs(before, self.status), resting=self.status.resting)
            await asyncio.sleep(max(0.0, started + gap - loop.time()))

    async def _read(self) -> Reading:
        dialect = self._dialect
        names = dialect.moving if dialect is not None and self._asks_for_some else ()
        exposition = Exposition(await self._client.metrics(names, timeout=self._answer_timeout_s))
        if dialect is None:
            dialect = detect(exposition, self._engine)
            if dialect is None:
                raise UnreadableMetrics(f"the metrics are not those of {self._engine or ', '.join(ENGINES)}")
            self._dialect = dialect
        try:
            return read(dialect, exposition, self.status.reading)
        except MissingMetrics:
            if names:
                # Its server can't filter families, e.g. prometheus_client over several processes.
                self._asks_for_some = False
                return await self._read()
            self._dialect = None
            raise

    def _answered(self, reading: Reading) -> None:
        began = self._life.answered(reading.started_at, reading.progress)
        known = bool(self.status.boot_id)
        status = replace(self.status, boot_id=self._life.boot_id, reading=reading, read_at_ms=_unix_ms())
        if began:
            status = replace(status, facts=None)
            self._facts_wanted.set()
            if known:
                _log.warning("engine_restarted", url=self._client.url, boot_id=status.boot_id)
        if self._unhealthy:
            self._tell(replace(status, reachable=False, reason=self._unhealthy))
        elif reading.asleep:
            self._tell(replace(status, reachable=False, reason=ASLEEP))
        else:
            self._tell(replace(status, reachable=True, reason=""))

    async def _keep_checking_health(self) -> None:
        passed = 0
        while True:
            await asyncio.sleep(HEALTH_INTERVAL_S)
            passed += 1
            if self.status.resting and passed < self._pace.company.rest:
                continue
            passed = 0
            try:
                await self._client.check_health(timeout=HEALTH_TIMEOUT_S)
            except EngineRefused:
                continue  # the readings show it sooner
            except EngineUnreachable as error:
                self._unhealthy = str(error)
                self._unreachable(self._unhealthy)
            else:
                self._unhealthy = ""  # the next reading reports the recovery

    async def _keep_learning_facts(self) -> None:
        while True:
            rest = self._pace.company.rest if self.status.resting else 1.0
            patience = FACTS_INTERVAL_S * rest if self.status.facts is not None else FACTS_RETRY_S
            try:
                async with asyncio.timeout(patience):
                    await self._facts_wanted.wait()
                self._cache_known = False
            except TimeoutError:
                pass
            self._facts_wanted.clear()
            if self._dialect is None or not self.status.reachable:
                continue
            try:
                facts = await self._learn(self._dialect)
            except (EngineUnreachable, UnreadableMetrics, UnreadableModels) as error:
                self._facts_unknown(str(error))
                continue
            self.facts_problem = ""
            if not self._facts_wanted.is_set() and facts != self.status.facts:
                self._tell(replace(self.status, facts=facts))

    async def _learn(self, dialect: Dialect) -> EngineFacts:
        if not self._cache_known:
            # Facts that change only with a restart are requested once in a life.
            whole = Exposition(await self._client.metrics(timeout=FACTS_TIMEOUT_S))
            if self._asks_for_some:
                some = Exposition(await self._client.metrics(dialect.moving, timeout=FACTS_TIMEOUT_S))
                self._asks_for_some = all(some.samples(name) for name in dialect.moving if whole.samples(name))
            self._version = await self._client.version(timeout=FACTS_TIMEOUT_S)
            self._cache = read_cache(dialect, whole)
            # An engine may not know it yet.
            self._cache_known = self._cache.block_tokens is not None and self._cache.kv_blocks is not None
        return EngineFacts(
            engine=dialect.engine,
            version=self._version,
            served=await self._served(FACTS_TIMEOUT_S),
            cache=self._cache,
        )


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
