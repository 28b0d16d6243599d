"""Ports that a process of a test has again after it was killed."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """One that stays free while nobody listens: the kernel gives those above 32768 to outgoing connections, those of
    clients that try to reconnect to it among them."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
