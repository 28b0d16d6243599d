"""Sees to it that one agent alone speaks for the worker of this name."""

import asyncio
from contextlib import suppress
from typing import Final

from pointsman_contracts.worker import WorkerClaim
from pointsman_engines.speaker import EngineSpeaker
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.domain.name_claims import NameClaims, Rival

TURN_S: Final = 0.1
LISTEN_S: Final = 0.3
"""An agent that begins is silent for this long after its first claim: one that speaks already answers meanwhile."""
_LISTENS: Final = "its agent listens whether another one speaks for its name"

_log = Log("agent")


class NameClaimer:
    """Claims the worker's name on the bus, and silences its speaker while another agent speaks."""

    def __init__(self, bus: Bus, speaker: EngineSpeaker) -> None:
        self.leaving = False
        """Whether this agent drains: another one may speak then."""
        self._bus: Final = bus
        self._speaker: Final = speaker
        worker = speaker.worker
        self._route: Final = (worker.pool, worker.worker)
        self._claims: Final = NameClaims(*self._route, agent=bus.process.instance, url=worker.url)
        self._yields_to: Rival | None = None
        self._first_claim_at: float | None = None
        self._listens = True
        speaker.withhold(_LISTENS)
        bus.listen(WorkerClaim, self._heard, *self._route)

    def publish_claim(self) -> None:
        """Publish the claim now."""
        now = asyncio.get_running_loop().time()
        claim = self._claims.make_claim(now, self._boot_id, leaving=self.leaving)
        with suppress(BusError):  # the runtime reports a lost bus; the next claim is due soon
            self._bus.publish(claim, *self._route)
            if self._first_claim_at is None:
                self._first_claim_at = now

    def decide_speaker(self) -> None:
        """Decide who speaks, and claim the name when that is due. To be called every `TURN_S`."""
        now = asyncio.get_running_loop().time()
        rival = self._claims.find_speaker(now, leaving=self.leaving)
        if rival is None and self._speaker.unregistered is None:
            self._claims.start_speaking(now)
        if rival != self._yields_to:
            self._listens = False
            self._yield_to(rival)
        elif self._listens and self._first_claim_at is not None and now - self._first_claim_at >= LISTEN_S:
            self._listens = False
            self._speaker.withhold("")
        rivals = [] if rival is not None else self._claims.find_rivals(now)
        self._speaker.report_finding("twin_name", self._words(rivals) if rivals else "")
        if self._claims.due(now):
            self.publish_claim()

    @property
    def _boot_id(self) -> str:
        return self._speaker.status.boot_id

    def _heard(self, claim: WorkerClaim) -> None:
        self._claims.receive_claim(claim, self._boot_id, asyncio.get_running_loop().time())
        self.decide_speaker()

    def _words(self, rivals: list[Rival]) -> str:
        others = ", ".join(f"{rival.agent} for {rival.url}" for rival in rivals)
        return f"{self._bus.process.instance} for {self._speaker.worker.url}; without requests: {others}"

    def _yield_to(self, rival: Rival | None) -> None:
        self._yields_to = rival
        pool, worker = self._route
        if rival is None:
            _log.info("worker_name_free", pool=pool, worker=worker)
            self._speaker.withhold("")
            return
        _log.error("worker_name_taken", pool=pool, worker=worker, agent=rival.agent, url=rival.url)
        self._speaker.withhold(
            f"the name {worker!r} in pool {pool!r} is taken: {rival.agent} speaks for {rival.url}. "
            "Give this agent a name of its own (POINTSMAN_WORKER)"
        )
