"""Ports that a process of a test has again after it was killed."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port that stays free until a test listens on it. The kernel gives ports above 32768 to outgoing connections,
    including those of clients that try to reconnect to it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
