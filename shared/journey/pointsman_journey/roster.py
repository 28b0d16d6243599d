"""Sends heartbeats for the services of this process, and keeps the table of all that it receives."""

import asyncio
from collections.abc import Callable

from pointsman_contracts.generation import SPOKEN, Generations
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.timing import TIMES
from pointsman_journey.presence import PresenceTable
from pointsman_runtime.bus.fan_out import FanOut
from pointsman_runtime.bus.mailbox import Delivery
from pointsman_runtime.telling.lag import measured_slack
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies

_log = Log("heartbeat")


class Roster:
    """One per process. Its timer shares the loop with the work, so a stuck loop doesn't beat."""

    def __init__(self, link: FanOut, tallies: Tallies) -> None:
        self.table = PresenceTable()
        self._link = link
        self._tallies = tallies
        self._tally = tallies.new_tally("presence")
        self._strangers: dict[tuple[str, str], ServicePresence] = {}
        self._beats: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sid: int | None = None

    def add_beat(self, beat: Callable[[], None]) -> None:
        """Call `beat` at every beat, from now on."""
        self._beats.append(beat)
        if self._timer is None:
            self._sid = self._link.attach(subject(ServicePresence, ANY, ANY), self._heard)
            self._turn(asyncio.get_running_loop().time())
        else:
            beat()

    def remove_beat(self, beat: Callable[[], None]) -> None:
        """Call `beat` no more."""
        if beat in self._beats:
            self._beats.remove(beat)
        if not self._beats and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._sid is not None:
                self._link.unsubscribe(self._sid)

    def publish_states(self) -> None:
        """Publish the state of every service of this process."""
        for beat in self._beats:
            beat()

    def find_conflicting_peer(self, who: str) -> str | None:
        """The peer that `who` must not get ready beside, in words; None when it may.

        A peer that is ready stays. Of two that start, the older generation goes first: it belongs to what runs.
        """
        now = asyncio.get_running_loop().time()
        for (service, instance), beat in list(self._strangers.items()):
            theirs = Generations(*beat.contracts)
            if not self.table.is_alive(service, instance, now):
                del self._strangers[service, instance]
            elif beat.ready or theirs.newest < SPOKEN.newest:
                return (
                    f"{service} {instance} (version {beat.version}) speaks generation {theirs} of the contracts, this "
                    f"{who} {SPOKEN}: run versions that share a generation, or stop the others first"
                )
        return None

    def _turn(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.table.note_time(now, listening=self._link.connected, slack_s=measured_slack(due, now))
        due = now + TIMES.beat_s
        self._timer = loop.call_at(due, self._turn, due)
        self.publish_states()

    def _heard(self, delivery: Delivery) -> None:
        beat = delivery.message
        if not isinstance(beat, ServicePresence):
            try:
                beat = ServicePresence.decode(delivery.payload)
            except MalformedMessage as error:
                self._tallies.count_malformed(self._tally, delivery.subject, delivery.payload, error)
                return
        self._tally.handled += 1
        self.table.receive_heartbeat(
            beat.service,
            beat.instance,
            asyncio.get_running_loop().time(),
            ready=beat.ready and self._understands(beat),
            revision=beat.revision,
            routes=beat.routes,
        )

    def _understands(self, beat: ServicePresence) -> bool:
        who = beat.service, beat.instance
        if beat.contracts == SPOKEN or SPOKEN.is_compatible_with(Generations(*beat.contracts)):
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
