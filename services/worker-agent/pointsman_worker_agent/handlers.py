"""The agent's life cycle, from start to drain."""

import asyncio

from pointsman_engines.speaker import EngineSpeaker
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.draining import Draining
from pointsman_worker_agent.name_claimer import NameClaimer

_LOOK_S = 0.1
_CHECK_S = 1.0

_log = Log("agent")


class Handlers:
    """Around the one engine that this agent speaks for."""

    def __init__(self, speaker: EngineSpeaker, names: NameClaimer, drain_timeout_s: float) -> None:
        self._speaker = speaker
        self._names = names
        self._drain_timeout_s = drain_timeout_s

    async def start(self) -> None:
        """Begin to publish. An engine that does not answer is tried again; `/ready` names the reason."""
        self._speaker.start()

    async def supervise(self) -> None:
        """Raise when a part of the speaker ended."""
        while True:
            self._speaker.raise_task_error()
            await asyncio.sleep(_CHECK_S)

    async def drain(self) -> None:
        """Publish that the engine drains, wait until it is idle, remove its registration."""
        speaker, loop = self._speaker, asyncio.get_running_loop()
        speaker.loads.drain()
        self._names.leaving = True
        self._names.publish_claim()
        draining = Draining(loop.time(), self._drain_timeout_s)
        while not draining.is_finished(loop.time(), idle=self._idle()):
            if draining.is_overdue(loop.time()):
                reading = speaker.status.reading
                _log.warning(
                    "drain_incomplete",
                    waited_s=self._drain_timeout_s,
                    running=reading.running if reading else 0,
                    waiting=reading.waiting if reading else 0,
                )
                break
            await asyncio.sleep(_LOOK_S)
        await speaker.stop(leave=True)

    def _idle(self) -> bool:
        """An engine that doesn't answer has nothing that could be waited for."""
        status = self._speaker.status
        return not status.reachable or status.reading is None or not status.reading.busy
