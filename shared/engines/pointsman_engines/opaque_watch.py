"""Keeps looking at an endpoint that tells nothing of its load: whether it lives, and which models it names."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_engines.client import EngineClient, EngineFailed, EngineHung, EngineRefused, EngineUnreachable
from pointsman_engines.life import Life
from pointsman_engines.models import ServedModels, UnreadableModels, served_models
from pointsman_engines.reading import Reading
from pointsman_engines.status import OPAQUE, EngineFacts, EngineStatus
from pointsman_engines.watch import ANSWER_TIMEOUT_S, FACTS_INTERVAL_S, ReadingTally
from pointsman_runtime.logs import Log

DEFAULT_HEALTH: Final = "/health"
INTERVAL_S: Final = 0.4
"""With the time that an answer may take, an endpoint that stopped is known within 1.1 seconds."""

_NOTHING_TOLD: Final = Reading(running=0, waiting=0)

_log = Log("engine")


class OpaqueWatch:
    """As `EngineWatch`, for an endpoint without an engine's metrics: `health` is a path that answers 200 while all is
    well. A new life is known by a connection that was refused in between."""

    def __init__(
        self,
        client: EngineClient,
        on_status: Callable[[EngineStatus], None],
        *,
        health: str = DEFAULT_HEALTH,
        interval_s: float = INTERVAL_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self.status = EngineStatus()
        self.tally = ReadingTally()
        self.facts_problem = ""
        """Why its models are unknown; empty when they aren't, or weren't asked for yet."""
        self._client = client
        self._on_status = on_status
        self._health = health
        self._interval_s = interval_s
        self._answer_timeout_s = answer_timeout_s
        self._life = Life()
        self._facts_due = 0.0

    async def run(self) -> None:
        """Look for ever."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._look()
            if self.status.reachable and loop.time() >= self._facts_due:
                await self._learn()
                self._facts_due = loop.time() + FACTS_INTERVAL_S
            await asyncio.sleep(max(0.0, started + self._interval_s - loop.time()))

    async def _look(self) -> None:
        started = time.perf_counter()
        try:
            await self._client.check(self._health, timeout=self._answer_timeout_s)
        except EngineRefused as error:
            self.tally.refused += 1
            self._life.refused()
            self._tell(replace(self.status, reachable=False, reason=str(error)))
        except EngineHung as error:
            self.tally.hung += 1
            self._tell(replace(self.status, reachable=False, reason=str(error)))
        except EngineUnreachable as error:
            self.tally.failed += 1
            self._tell(replace(self.status, reachable=False, reason=str(error)))
        else:
            self.tally.answered += 1
            self.tally.spent_s += time.perf_counter() - started
            self._answered()

    def _answered(self) -> None:
        began = self._life.answered(None, None)
        facts = self.status.facts
        if began:
            facts, self._facts_due = None, 0.0
        self._tell(
            replace(
                self.status,
                reachable=True,
                reason="",
                boot_id=self._life.boot_id,
                reading=_NOTHING_TOLD,
                read_at_ms=time.time_ns() // 1_000_000,
                facts=facts,
            )
        )

    async def _learn(self) -> None:
        try:
            served = served_models(await self._client.models(timeout=self._answer_timeout_s))
        except EngineFailed:
            served = ServedModels()  # it doesn't list models; the pool's configuration names them
        except (EngineUnreachable, UnreadableModels) as error:
            if self.facts_problem != str(error):
                self.facts_problem = str(error)
                _log.warning("engine_facts_unknown", url=self._client.url, reason=self.facts_problem)
            return
        self.facts_problem = ""
        facts = EngineFacts(engine=OPAQUE, served=served)
        if facts != self.status.facts:
            self._tell(replace(self.status, facts=facts))

    def _tell(self, status: EngineStatus) -> None:
        before, self.status = self.status, status
        if before.reachable != status.reachable or before.reason != status.reason:
            if status.reachable:
                _log.info("engine_answers", url=self._client.url, boot_id=status.boot_id)
            else:
                _log.warning("engine_unreachable", url=self._client.url, reason=status.reason)
        self._on_status(status)
