"""The part of the bus that the services of one process share."""

from collections.abc import Callable
from typing import Final

from pointsman_runtime.bus.edge_clocks import EdgeClocks
from pointsman_runtime.bus.fan_out import FanOut
from pointsman_runtime.bus.link import Link
from pointsman_runtime.bus.replies import ReplyTable
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies

_log = Log("bus")


class Hub:
    """One connection, and one table of the callers that wait for answers."""

    def __init__(self, link: Link, inbox: str) -> None:
        self.link: Final = FanOut(link)
        self.tallies: Final = Tallies()
        self.replies: Final = ReplyTable(inbox)
        self.clocks: Final = EdgeClocks()
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
            self.link.answers(self.replies.prefix, self.replies.receive_reply)
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
