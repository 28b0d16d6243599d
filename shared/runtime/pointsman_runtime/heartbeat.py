"""Beats for this instance, and keeps the table of everybody else's beats."""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pointsman_contracts.generation import SPOKEN, Generations
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY, subject
from pointsman_runtime.errors import BusError
from pointsman_runtime.lag import measured_slack
from pointsman_runtime.logs import Log
from pointsman_runtime.mailbox import Tally
from pointsman_runtime.presence import BEAT_S, PresenceTable

if TYPE_CHECKING:
    from pointsman_runtime.bus import Bus


_log = Log("heartbeat")


class Heartbeat:
    """One per bus. Its timer shares the loop with the work, so a stuck loop doesn't beat."""

    def __init__(self, bus: "Bus", tally: Tally) -> None:
        self.table = PresenceTable()
        self.ready = False
        """Whether forwarders may address this instance."""
        self.revision = 0
        """Configuration revision that this instance runs."""
        self.routes: tuple[str, ...] = ()
        """Route tokens that it serves; empty when it serves all."""
        self._strangers: dict[tuple[str, str], ServicePresence] = {}
        self._bus = bus
        self._tally = tally
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sid: int | None = None

    @property
    def beating(self) -> bool:
        """Whether it was started and not stopped."""
        return self._timer is not None

    @property
    def stranger(self) -> str | None:
        """Whom this instance must not get ready beside, in words; None when it may.

        Who is ready stays. Of two that start, the older generation goes first: it belongs to what runs.
        """
        now = asyncio.get_running_loop().time()
        for (service, instance), beat in list(self._strangers.items()):
            theirs = Generations(*beat.contracts)
            if not self.table.alive(service, instance, now):
                del self._strangers[service, instance]
            elif beat.ready or theirs.newest < SPOKEN.newest:
                return (
                    f"{service} {instance} (version {beat.version}) speaks generation {theirs} of the contracts, this "
                    f"{self._bus.process.service} (version {self._bus.process.version}) {SPOKEN}: run versions that "
                    "have one in common, or end the other ones first"
                )
        return None

    def start(self) -> None:
        """Begin to beat and to listen."""
        self._sid = self._bus.link.subscribe(subject(ServicePresence, ANY, ANY), self._heard)
        self._turn(asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Fall silent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """Say where this instance stands; also out of turn, when that changes."""
        process = self._bus.process
        self._sequence += 1
        # Without a connection, or with a server that doesn't read, this instance is silent, which is the truth.
        with contextlib.suppress(BusError):
            self._bus.publish(
                ServicePresence(
                    service=process.service,
                    instance=process.instance,
                    sequence=self._sequence,
                    at_ms=time.time_ns() // 1_000_000,
                    version=process.version,
                    ready=self.ready,
                    revision=self.revision,
                    routes=self.routes,
                    contracts=SPOKEN,
                ),
                process.service,
                process.instance,
            )

    def _turn(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.table.tick(now, listening=self._bus.connected, slack_s=measured_slack(due, now))
        self.beat()
        due = now + BEAT_S
        self._timer = loop.call_at(due, self._turn, due)

    def _heard(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        del reply, headers
        try:
            beat = ServicePresence.decode(payload)
        except ValidationError as error:
            self._bus.malformed(self._tally, subject, payload, error)
            return
        self._tally.handled += 1
        self.table.heard(
            beat.service,
            beat.instance,
            asyncio.get_running_loop().time(),
            ready=beat.ready and self._understands(beat),
            revision=beat.revision,
            routes=beat.routes,
        )

    def _understands(self, beat: ServicePresence) -> bool:
        who = beat.service, beat.instance
        if beat.contracts == SPOKEN or SPOKEN.understands(Generations(*beat.contracts)):
            self._strangers.pop(who, None)
            return True
        if who not in self._strangers:
            _log.error(
                "contracts_differ",
                service=beat.service,
                instance=beat.instance,
                version=beat.version,
                speaks=str(Generations(*beat.contracts)),
                spoken_here=str(SPOKEN),
            )
        self._strangers[who] = beat
        return False
