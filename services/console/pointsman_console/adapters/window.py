"""A connection to the bus that exists only while a page needs it: without an open page the console subscribes to
nothing.

It isn't the connection of the process: services of a bundle hand messages to each other, and these would be missing
here.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.telling.process import Process


class Window:
    """Opened by its first user, closed by its last."""

    def __init__(self, connect: Callable[[], Bus]) -> None:
        self._connect = connect
        self._bus: Bus | None = None
        self._users = 0

    @property
    def open(self) -> bool:
        """Whether there is a connection."""
        return self._bus is not None

    @asynccontextmanager
    async def hold_bus(self) -> AsyncGenerator[Bus]:
        """The bus, for the length of a `with`; it connects by itself, and again after a loss."""
        self._users += 1
        if self._bus is None:
            self._bus = self._connect()
            self._bus.open()
        try:
            yield self._bus
        finally:
            self._users -= 1
            if not self._users:
                bus, self._bus = self._bus, None
                await bus.close()


def window(settings: ServiceSettings, process: Process) -> Window:
    """To the server of these settings, with their login."""
    own = replace(process, instance=f"{process.instance}-window")
    tls = settings.nats_tls()

    def connect() -> Bus:
        link = Connection(
            settings.nats_servers,
            name=f"{own.service} {own.instance}",
            login=settings.nats_login,
            tls=tls,
        )
        return Bus(link, own)

    return Window(connect)
