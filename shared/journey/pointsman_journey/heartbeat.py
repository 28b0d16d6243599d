"""The heartbeat of one service of this process."""

import contextlib
import time
from typing import Protocol

from pointsman_contracts.generation import SPOKEN
from pointsman_contracts.message import Message
from pointsman_contracts.presence import ServicePresence
from pointsman_journey.presence import PresenceTable
from pointsman_journey.roster import Roster
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling import descriptors
from pointsman_runtime.telling.process import Process


class Publisher(Protocol):
    """Publishes for one service: its `Bus`."""

    process: Process

    def publish(self, message: Message, *route: str) -> None:
        """Send a signal. Raises BusError."""
        ...


class Heartbeat:
    """One per service."""

    def __init__(self, publisher: Publisher, roster: Roster) -> None:
        self.process = publisher.process
        self.table: PresenceTable = roster.table
        """Every known service, this one included."""
        self.ready = False
        """Whether forwarders may address this instance."""
        self.revision = 0
        """Configuration revision that this instance runs."""
        self.routes: tuple[str, ...] = ()
        """Route tokens that it serves; empty when it serves all."""
        self.beating = False
        """Whether it was started and not stopped."""
        self._publisher = publisher
        self._roster = roster
        self._sequence = 0

    @property
    def find_conflicting_peer(self) -> str | None:
        """The peer that this instance must not get ready beside, in words; None when it may."""
        process = self.process
        return self._roster.find_conflicting_peer(f"{process.service} (version {process.version})")

    def start(self) -> None:
        """Begin to beat and to listen."""
        self.beating = True
        self._roster.add_beat(self.publish_state)

    def stop(self) -> None:
        """Fall silent."""
        self.beating = False
        self._roster.remove_beat(self.publish_state)

    def publish_state(self) -> None:
        """Publish this instance's state; also between two beats, when it changes. Not before `start`."""
        if not self.beating:
            return
        process = self.process
        self._sequence += 1
        # Without a connection, or with a server that doesn't read, this instance is silent, which is the truth.
        with contextlib.suppress(BusError):
            self._publisher.publish(
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
                    descriptors=descriptors.limit(),
                ),
                process.service,
                process.instance,
            )
