"""Watches an endpoint that reports no load: whether it is alive, and which models it lists."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_engines.client import EngineClient, EngineFailed, PageUnread
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, FACTS_RETRY_S, NO_LIST, EndpointWatch, LoadPage
from pointsman_engines.models import UnreadableModels
from pointsman_engines.page_time import LONGEST_ANSWER_S
from pointsman_engines.reading import EngineIdentity, Reading
from pointsman_engines.status import OPAQUE, EngineFacts, EngineStatus

DEFAULT_HEALTH: Final = "/health"
FALLBACK_HEALTH: Final = "/v1/models"
FACTS_INTERVAL_S: Final = 5.0
_NO_LIST_FOR_US: Final = (*NO_LIST, 401, 403)
"""An endpoint without a known model may list its models only to clients with a key."""

_NOTHING_TOLD: Final = Reading(running=0, waiting=0)


class OpaqueWatch(EndpointWatch):
    """Watches an endpoint without an engine's metrics. `health` is a path that answers 200 while the endpoint is
    healthy; None for `/health`, or for `/v1/models` when that path is missing. A refused connection in between marks a
    new life."""

    def __init__(
        self,
        client: EngineClient,
        on_status: Callable[[EngineStatus], None],
        *,
        health: str | None = None,
        interval_s: float | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        super().__init__(client, on_status, answer_timeout_s)
        self._health = LoadPage(health or DEFAULT_HEALTH, answer_timeout_s)
        self._chosen = health is not None
        self._interval_s = TIMES.report_s if interval_s is None else interval_s
        self._facts_due = 0.0

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._look()
            if self.status.reachable and loop.time() >= self._facts_due:
                await self._learn()
                self._facts_due = loop.time() + (FACTS_RETRY_S if self.status.facts is None else FACTS_INTERVAL_S)
            await asyncio.sleep(max(0.0, started + self._interval_s - loop.time()))

    async def _look(self) -> None:
        started = time.perf_counter()
        try:
            await self._check()
        except EngineFailed as error:
            self._count(error)
            self._says_no(str(error))
        except PageUnread as error:
            self._count(error)
            if not self.status.boot_id:
                self._tell(replace(self.status, reason=str(error)))
        else:
            self.tally.answered += 1
            self.tally.spent_s += time.perf_counter() - started
            self._unhealthy = ""
            self._met()

    async def _check(self) -> None:
        try:
            with self._asking(self._health):
                await self._client.check(self._health.name, timeout=LONGEST_ANSWER_S)
        except EngineFailed as error:
            if self._chosen or error.status not in _NO_LIST_FOR_US:
                raise
            await self._lists_models(error)
            self._health = LoadPage(FALLBACK_HEALTH, self._answer_timeout_s)

    async def _lists_models(self, no_health: EngineFailed) -> None:
        """Many OpenAI-compatible servers have no health path, and all have this one."""
        try:
            with self._asking(self._models):
                await self._client.check(FALLBACK_HEALTH, timeout=LONGEST_ANSWER_S)
        except EngineFailed as error:
            raise (no_health if error.status in NO_LIST else error) from error

    def _says_no(self, reason: str) -> None:
        """It answers that it isn't healthy."""
        self._unhealthy = reason
        if self.status.boot_id:
            self._met()
        else:
            self._tell(replace(self.status, reason=reason))

    def _met(self) -> None:
        self._meets(EngineIdentity())
        self._tell(replace(self.status, load_unknown="", reading=_NOTHING_TOLD, read_at_ms=time.time_ns() // 1_000_000))

    def _begun(self) -> None:
        self._facts_due = 0.0

    def _half_late(self) -> None:
        """It has no other page that answers sooner."""

    async def _learn(self) -> None:
        facts = self.status.facts
        named = facts is not None and bool(facts.served.models)
        try:
            served = await self._served(NO_LIST if named else _NO_LIST_FOR_US)
        except (PageUnread, UnreadableModels) as error:
            self._facts_unknown(str(error))
            return
        self.facts_problem = ""
        facts = EngineFacts(engine=OPAQUE, served=served)
        if facts != self.status.facts:
            self._tell(replace(self.status, facts=facts))
