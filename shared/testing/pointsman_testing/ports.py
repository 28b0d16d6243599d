"""Ports that a process of a test has again after it was killed."""

import random
import socket
from contextlib import ExitStack, suppress


def free_port(following: int = 0) -> int:
    """A port that stays free until a test listens on it, and so do as many that follow. The kernel gives ports above
    32768 to outgoing connections, including those of clients that try to reconnect to it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with ExitStack() as probes, suppress(OSError):
            for each in range(port, port + following + 1):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
