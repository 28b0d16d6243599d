"""What the services of one process share of the bus."""

from collections.abc import Callable
from typing import Final, NamedTuple

from pointsman_runtime.bus.fan_out import FanOut
from pointsman_runtime.bus.link import Link
from pointsman_runtime.bus.mailbox import Fifo
from pointsman_runtime.bus.replies import ReplyTable
from pointsman_runtime.journey.roster import Roster
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies

_log = Log("bus")


class LocalStage(NamedTuple):
    """A stage of this process."""

    instance: str
    mailbox: Fifo


class Hub:
    """One connection, one table of who waits for answers, one of who lives, and the stages that serve here."""

    def __init__(self, link: Link, inbox: str) -> None:
        self.link: Final = FanOut(link)
        self.tallies: Final = Tallies()
        self.replies: Final = ReplyTable(inbox)
        self.roster: Final = Roster(self.link, self.tallies)
        self.stages: Final[dict[str, LocalStage]] = {}
        """The stages of this process that take work, by service: a hop to one of them is a call."""
        self.reviewers: Final[dict[str, LocalStage]] = {}
        """The same for the way back."""
        self.on_connected: Final[list[Callable[[], None]]] = []
        self.on_disconnected: Final[list[Callable[[], None]]] = []
        self.connection: Final = link
        """Underneath `link`."""
        self._open = False
        self._refusals: set[str] = set()
        link.on_connected = self._connected
        link.on_disconnected = self._disconnected
        link.on_refused = self._refused

    def open(self) -> None:
        """Begin to connect. Doesn't wait; a server that can't be reached is tried for ever."""
        if not self._open:
            self._open = True
            self.link.answers(self.replies.prefix, self.replies.take)
            self.connection.open()

    async def close(self) -> None:
        """Disconnect at once."""
        self.connection.on_disconnected = _ignored
        await self.connection.close()

    def _connected(self) -> None:
        for action in self.on_connected:
            action()
        _log.info("bus_connected")

    def _disconnected(self, reason: str) -> None:
        for action in self.on_disconnected:
            action()
        _log.warning("bus_disconnected", reason=reason)

    def _refused(self, words: str) -> None:
        # A publisher without the right would otherwise write this line for every message.
        if words not in self._refusals:
            self._refusals.add(words)
            _log.error("subject_refused", server_says=words)


def _ignored(reason: str) -> None:
    del reason
