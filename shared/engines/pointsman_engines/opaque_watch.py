"""Watches an endpoint that reports no load: whether it is alive, and which models it lists."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_engines.client import EngineClient, EngineFailed, EngineUnreachable
from pointsman_engines.endpoint_watch import ANSWER_TIMEOUT_S, FACTS_RETRY_S, NO_LIST, EndpointWatch
from pointsman_engines.models import UnreadableModels
from pointsman_engines.reading import Reading
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
        self._health = health or DEFAULT_HEALTH
        self._chosen = health is not None
        self._interval_s = TIMES.report_s if interval_s is None else interval_s
        self._facts_due = 0.0

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._look()
            if self.status.reachable and loop.time() >= self._facts_due:
                await self._learn()
                self._facts_due = loop.time() + (FACTS_RETRY_S if self.status.facts is None else FACTS_INTERVAL_S)
            await asyncio.sleep(max(0.0, started + self._interval_s - loop.time()))

    async def _read(self) -> Reading:
        try:
            await self._client.check(self._health, timeout=self._answer_timeout_s)
        except EngineFailed as error:
            if self._chosen or error.status not in NO_LIST:
                raise
            await self._lists_models(error)
            self._health = FALLBACK_HEALTH
        return _NOTHING_TOLD

    async def _lists_models(self, no_health: EngineFailed) -> None:
        """Many OpenAI-compatible servers have no health path, and all have this one."""
        try:
            await self._client.check(FALLBACK_HEALTH, timeout=self._answer_timeout_s)
        except EngineFailed as error:
            raise (no_health if error.status in NO_LIST else error) from error

    def _answered(self, reading: Reading) -> None:
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
                reading=reading,
                read_at_ms=time.time_ns() // 1_000_000,
                facts=facts,
            )
        )

    async def _learn(self) -> None:
        facts = self.status.facts
        named = facts is not None and bool(facts.served.models)
        try:
            served = await self._served(self._answer_timeout_s, NO_LIST if named else _NO_LIST_FOR_US)
        except (EngineUnreachable, UnreadableModels) as error:
            self._facts_unknown(str(error))
            return
        self.facts_problem = ""
        facts = EngineFacts(engine=OPAQUE, served=served)
        if facts != self.status.facts:
            self._tell(replace(self.status, facts=facts))
