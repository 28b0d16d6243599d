"""Watches one engine: its load, its current life, and whether it is ready."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_contracts.worker import WorkerFinding
from pointsman_engines.client import (
    EngineClient,
    EngineFailed,
    EngineHung,
    EngineReset,
    EngineUnreachable,
    OwnLimitReached,
    PageUnread,
)
from pointsman_engines.dialect import ENGINES, Dialect, detect
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, FACTS_RETRY_S, EndpointWatch, LoadPage
from pointsman_engines.exposition import Exposition, UnreadableMetrics
from pointsman_engines.logged_problem import LoggedProblem
from pointsman_engines.models import UnreadableModels
from pointsman_engines.pace import ReadingPace
from pointsman_engines.page_time import LONGEST_ANSWER_S
from pointsman_engines.reading import CacheFacts, EngineIdentity, MissingMetrics, Reading, identity, read, read_cache
from pointsman_engines.status import OPAQUE, EngineFacts, EngineStatus, differs
from pointsman_runtime.telling.logs import Log

FACTS_INTERVAL_S: Final = 0.5
"""Adapters come and go while an engine runs; with the message on the bus, schedulers know it within a second."""
HEALTH_INTERVAL_S: Final = 1.0
HEALTH_SLOW_S: Final = 2.0
"""An answer that takes longer says nothing of the present; SGLang's may wait for a token."""
UNREAD_AFTER_S: Final = 2.0
"""An engine whose metrics were never readable is served without them after this time: one that starts needs a moment
until it has them."""
DOUBTED_S: Final = 60.0
"""An impossible figure is reported for this long after it was last seen."""

_log = Log("engine")


class EngineWatch(EndpointWatch):
    """Watches one engine. `engine` names the kind when it shouldn't be guessed from the metrics."""

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
        self._metrics: Final = LoadPage("/metrics", answer_timeout_s, tells_load=True)
        self._health: Final = LoadPage("/health", answer_timeout_s)
        self._dialect: Dialect | None = None
        self._asks_for_some = True
        self._healthy = False
        """Whether its health page said so."""
        self._health_unknown = ""
        """Why its health page leaves open whether it is ready; empty when it doesn't."""
        self._unread_since: float | None = None
        """Since when the metrics can't be read; None while they can."""
        self._version = ""
        self._cache = CacheFacts()
        self._cache_known = False
        self._facts_wanted = asyncio.Event()
        self._health_wanted = asyncio.Event()
        self._doubt = ""
        self._doubted_at = 0.0
        self._logged_shared = LoggedProblem(well=True)

    async def run(self) -> None:
        """Watch until cancelled."""
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
            resting = self.status.resting or bool(self.status.load_unknown)
            gap = self._pace.next_gap(gap, changed=differs(before, self.status), resting=resting)
            await asyncio.sleep(max(0.0, started + gap - loop.time()))

    async def _look(self) -> None:
        asked, asked_ms = asyncio.get_running_loop().time(), _unix_ms()
        try:
            with self._asking(self._metrics):
                who, reading = await self._fetch()
        except UnreadableMetrics as error:
            self.tally.unreadable += 1
            self._load_lost(str(error), answers=True)
        except PageUnread as error:
            self._count(error)
            if not isinstance(error, EngineUnreachable):
                answered = not isinstance(error, EngineReset | EngineHung | OwnLimitReached)
                self._load_lost(str(error), answers=answered)
        else:
            self._meets(who)
            if isinstance(reading, UnreadableMetrics):
                self.tally.unreadable += 1
                self._load_lost(str(reading), answers=True)
                return
            took = asyncio.get_running_loop().time() - asked
            self.tally.answered += 1
            self.tally.spent_s += took
            self._read(reading, asked_ms, took)

    def _load_lost(self, reason: str, *, answers: bool) -> None:
        if self._unread_since is None:
            self._unread_since = asyncio.get_running_loop().time()
        super()._load_lost(reason, answers=answers)

    async def _fetch(self) -> tuple[EngineIdentity, Reading | UnreadableMetrics]:
        """The process that answered, and its load or why that can't be read. Raises UnreadableMetrics when not even the
        kind of the engine is known."""
        dialect = self._dialect
        names = dialect.moving_families if dialect is not None and self._asks_for_some else ()
        exposition = Exposition(await self._client.metrics(names, timeout=LONGEST_ANSWER_S))
        if dialect is None:
            dialect = self._recognise(exposition)
        who = identity(dialect, exposition)
        try:
            return who, read(dialect, exposition, self.status.reading)
        except MissingMetrics as error:
            if names:
                # Its server can't filter families, e.g. prometheus_client over several processes.
                self._asks_for_some = False
                return await self._fetch()
            self._dialect = detect(exposition, self._engine) or dialect
            return who, error
        except UnreadableMetrics as error:
            return who, error

    def _recognise(self, exposition: Exposition) -> Dialect:
        dialect = detect(exposition, self._engine)
        if dialect is None:
            raise UnreadableMetrics(f"the metrics are not those of {self._engine or ', '.join(ENGINES)}")
        self._dialect = dialect
        self._facts_wanted.set()
        return dialect

    def _read(self, reading: Reading, asked_ms: int, took: float) -> None:
        self._unread_since = None
        if reading.by_rank is not None and not reading.by_rank.keys() <= set(self._cache.rank_labels):
            self._facts_wanted.set()  # SGLang names a rank in its metrics once that has worked
        if reading.doubt:
            self._doubt, self._doubted_at = reading.doubt, asyncio.get_running_loop().time()
        unknown = ""
        if took > self._metrics.time.latest_s:
            unknown = f"/metrics takes {took:.1f} s"
        elif self._life.shared:  # which is a finding as well
            unknown = f"its URL leads to several processes: {self._life.shared}"
        if self._logged_shared.is_news(self._life.shared, time.monotonic()) and self._life.shared:
            _log.warning("engine_url_shared", url=self._client.url, reason=self._life.shared)
        status = replace(self.status, load_unknown=unknown, asleep=reading.asleep, reading=reading, read_at_ms=asked_ms)
        self._tell(status)

    def _begun(self) -> None:
        self._asks_for_some = True
        self._facts_wanted.set()

    def _findings(self) -> tuple[WorkerFinding, ...]:
        found = list(super()._findings())
        if self._life.shared:
            found.append(WorkerFinding(kind="shared_url", what=self._life.shared))
        if self._health_unknown and not self._unhealthy and self.status.boot_id:
            found.append(WorkerFinding(kind="health_unknown", what=self._health_unknown))
        if self._doubt and asyncio.get_running_loop().time() - self._doubted_at < DOUBTED_S:
            found.append(WorkerFinding(kind="load_values", what=self._doubt))
        return tuple(found)

    def _half_late(self) -> None:
        self._health_wanted.set()

    async def _keep_checking_health(self) -> None:
        passed = 0
        while True:
            try:
                async with asyncio.timeout(HEALTH_INTERVAL_S):
                    await self._health_wanted.wait()
            except TimeoutError:
                passed += 1
                if self.status.resting and passed < self._pace.company.rest_factor:
                    continue
            passed = 0
            await self._check_health()
            self._health_wanted.clear()

    async def _check_health(self) -> None:
        loop = asyncio.get_running_loop()
        slow = loop.call_later(HEALTH_SLOW_S, self._health_is, f"/health takes more than {HEALTH_SLOW_S:g} s")
        asked = loop.time()
        try:
            with self._asking(self._health):
                self._healthy = await self._client.check_health(timeout=LONGEST_ANSWER_S)
        except EngineFailed as error:
            self._healthy = False
            self._unhealthy = str(error) if _says_no(error.status) else ""
            self._health_is("" if self._unhealthy else str(error))
        except (EngineUnreachable, EngineReset, OwnLimitReached):
            return  # the readings show a closed port sooner
        except PageUnread as error:
            self._health_is(str(error))
        else:
            self._unhealthy = ""
            self._health_is("" if loop.time() - asked <= HEALTH_SLOW_S else self._health_unknown)
        finally:
            slow.cancel()

    def _health_is(self, unknown: str) -> None:
        """The health page answered, or is late; `unknown` says why that leaves open whether the engine is ready."""
        self._health_unknown = unknown
        if self.status.unready != (self._unhealthy or self._silent) or self.status.findings != self._findings():
            self._tell(self.status)

    async def _keep_learning_facts(self) -> None:
        while True:
            rest = self._pace.company.rest_factor if self.status.resting else 1.0
            patience = FACTS_INTERVAL_S * rest if self.status.facts is not None else FACTS_RETRY_S
            try:
                async with asyncio.timeout(patience):
                    await self._facts_wanted.wait()
                self._cache_known = False
            except TimeoutError:
                pass
            self._facts_wanted.clear()
            if not (self.status.reachable or self._stays_unread()):
                continue
            try:
                facts = await self._learn()
            except (PageUnread, UnreadableModels) as error:
                self._facts_unknown(str(error))
                continue
            if not self.status.boot_id:
                if not (facts.served.models or self._healthy):
                    continue  # anything may answer there
                self._meets(EngineIdentity())
                self._facts_wanted.clear()
            self.facts_problem = ""
            if not self._facts_wanted.is_set() and facts != self.status.facts:
                self._tell(replace(self.status, facts=facts))

    def _stays_unread(self) -> bool:
        """Whether its metrics have been unreadable for so long that it is served without them."""
        since = self._unread_since
        return since is not None and asyncio.get_running_loop().time() - since >= UNREAD_AFTER_S

    async def _learn(self) -> EngineFacts:
        dialect = self._dialect
        if dialect is not None and not self._cache_known:
            # Facts that change only with a restart are requested once in a life.
            await self._learn_cache(dialect)
        kind = dialect.engine if dialect is not None else self._engine or OPAQUE
        served = await self._served(known=dialect is not None)
        return EngineFacts(engine=kind, version=self._version, served=served, cache=self._cache)

    async def _learn_cache(self, dialect: Dialect) -> None:
        """The cache and the version; they stay unknown while the metrics can't be read."""
        try:
            whole = Exposition(await self._client.metrics(timeout=LONGEST_ANSWER_S))
            if self._asks_for_some:
                some = Exposition(await self._client.metrics(dialect.moving_families, timeout=LONGEST_ANSWER_S))
                self._asks_for_some = all(
                    some.find_samples(name) for name in dialect.moving_families if whole.find_samples(name)
                )
            self._cache = read_cache(dialect, whole)
            self._version = await self._client.version(timeout=LONGEST_ANSWER_S)
        except (PageUnread, UnreadableMetrics):
            return  # asked for again with the next facts
        # An engine may not know it yet.
        self._cache_known = self._cache.block_tokens is not None and self._cache.kv_blocks is not None


def _says_no(status: int) -> bool:
    """Whether a health page with this status says that the engine isn't ready; Triton's says it by 400. Others, such as
    one that asks for a key, leave that open."""
    return status == 400 or (status >= 500 and status != 501)


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
