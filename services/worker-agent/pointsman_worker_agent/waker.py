"""Wakes the engine when schedulers order it. The engine's answer proves nothing: it is awake once its pages say that it
serves."""

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry

from pointsman_contracts.demand import WakeOrder
from pointsman_engines.client import EngineFailed, PageUnread
from pointsman_engines.speaker import EngineSpeaker
from pointsman_engines.status import state_of
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.wake_pauses import WakePauses

CHECK_S: Final = 1.0
_LOOK_S: Final = 0.05
_NO_ROUTE: Final = (404, 405, 501)
NO_SLEEP_MODE: Final = "is VLLM_SERVER_DEV_MODE=1 set?"
DISCARDED: Final = "its weights were discarded (sleep level 2): woken, it would answer with noise"

_log = Log("waker")


class EngineWaker:
    """One attempt at a time, with growing pauses after failures."""

    def __init__(self, speaker: EngineSpeaker, registry: CollectorRegistry) -> None:
        self._speaker: Final = speaker
        self._pauses: Final = WakePauses()
        self._wakes: Final = Counter(
            "pointsman_engine_wakes",
            "Attempts of an agent to wake its engine: woken (it then served), or failed",
            ["outcome"],
            registry=registry,
        )
        self._task: asyncio.Task[None] | None = None
        self._failed = ""
        """Why it can't be woken, as reported; empty when nothing is."""

    def take_order(self, order: WakeOrder) -> None:
        """Begin to wake the engine, unless that is under way, or failed a moment ago."""
        status, now = self._speaker.status, asyncio.get_running_loop().time()
        if self._task is not None and not self._task.done():
            return
        if order.boot_id != status.boot_id or not status.asleep or self._speaker.drain is not None:
            return
        slept_again = self._pauses.judge_last(now)
        if slept_again:
            self._report_failure(slept_again)
        if now < self._pauses.retry_at:
            return
        self._task = asyncio.get_running_loop().create_task(self._wake(order.boot_id, order.within_ms / 1000))

    def check_engine(self) -> None:
        """An engine that was woken by someone else, or restarted, has no failure to report."""
        if self._failed and not self._speaker.status.asleep:
            self._report("")

    async def close(self) -> None:
        """End an attempt."""
        if self._task is not None:
            await end_all([self._task])

    async def _wake(self, boot_id: str, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._report("")
        reading = self._speaker.status.reading
        if reading is not None and reading.discarded:
            problem = DISCARDED
        else:
            _log.info("engine_wake_ordered", url=self._speaker.worker.url)
            problem = await self._wait_awake(boot_id, began + within_s, within_s)
        if not problem:
            self._pauses.note_awake(loop.time())
            self._wakes.labels("woken").inc()
            _log.info("engine_woken", url=self._speaker.worker.url, took_ms=round((loop.time() - began) * 1000))
            return
        self._pauses.note_failure(loop.time())
        self._report_failure(problem)

    async def _wait_awake(self, boot_id: str, until: float, within_s: float) -> str:
        """Why the engine doesn't serve at that time; empty as soon as it does."""
        loop = asyncio.get_running_loop()
        asking = loop.create_task(self._ask(within_s))
        try:
            while loop.time() < until:
                status = self._speaker.status
                if status.boot_id != boot_id:
                    return "it restarted"
                if not status.asleep and state_of(status) == "serving":
                    return ""
                if asking.done() and (refused := asking.result()):
                    return refused
                await asyncio.sleep(_LOOK_S)
            said = asking.result() or "/wake_up answered 200" if asking.done() else "no answer from /wake_up"
        finally:
            await end_all([asking])
        return f"{said}, and the engine is {state_of(self._speaker.status)} after {within_s:g} s"

    async def _ask(self, within_s: float) -> str:
        try:
            await self._speaker.wake_engine(within_s)
        except EngineFailed as error:
            return f"{error}: {NO_SLEEP_MODE}" if error.status in _NO_ROUTE else str(error)
        except PageUnread as error:
            return str(error)
        return ""

    def _report_failure(self, why: str) -> None:
        self._wakes.labels("failed").inc()
        if self._pauses.failures == 1:
            _log.warning("engine_not_woken", url=self._speaker.worker.url, reason=why)
        self._report(f"{why}; attempts in a row: {self._pauses.failures}" if self._pauses.failures > 1 else why)

    def _report(self, failed: str) -> None:
        self._failed = failed
        self._speaker.report_wake(failed)
