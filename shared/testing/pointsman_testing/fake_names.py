"""Names that a test lets lead where it likes, and addresses that answer nothing."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest

SLOW: Final = "slow.test"


class Names:
    """Stands in for the system's resolver for names that end with `.test`."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        """For the names that have no address."""
        self.asked: list[str] = []
        self.answers = threading.Event()
        """Until it is set, `SLOW` isn't answered."""
        self._system = socket.getaddrinfo

    def __call__(self, host: str, port: int, *more: Any, **options: Any) -> list[Any]:
        if not str(host).endswith(".test"):
            return self._system(host, port, *more, **options)
        self.asked.append(host)
        if str(host).endswith(SLOW):
            self.answers.wait(30)
        if not self.addresses.get(host):
            raise self.error
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in self.addresses[host]
        ]


@contextmanager
def answering_names(monkeypatch: pytest.MonkeyPatch) -> Generator[Names]:
    """The names of a test; no lookup is left waiting at its end."""
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    try:
        yield names
    finally:
        names.answers.set()


@contextmanager
def unanswering(address: str, port: int) -> Generator[None]:
    """Connections to this address are neither taken nor refused, like those to a host that is gone."""
    listener = socket.create_server((address, port), backlog=0)
    fillers = [socket.socket() for _ in range(3)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex((address, port))
    try:
        yield
    finally:
        for each in (*fillers, listener):
            each.close()
