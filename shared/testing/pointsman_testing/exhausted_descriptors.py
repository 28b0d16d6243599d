"""A process whose file descriptors are all in use."""

import asyncio
import resource
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pointsman_testing.processes import ServiceProcess

FREE = 8
"""Descriptors that are left when clients begin to take them."""


def limit_descriptors(process: ServiceProcess) -> None:
    """Leave the process `FREE` descriptors."""
    used = max(int(each.name) for each in Path(f"/proc/{process.pid}/fd").iterdir())
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + FREE, hard))


@contextmanager
def many_clients(place: tuple[str, int]) -> Generator[list[socket.socket], None, None]:
    """More connections than the process has descriptors for."""
    with ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(place)) for _ in range(4 * FREE + 64)]
        for client in clients:
            client.setblocking(False)
        yield clients


async def is_closed(client: socket.socket, greeting: bytes) -> bool:
    """Whether the other end closed a connection instead of answering a greeting on it."""
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(client, greeting)
        return await loop.sock_recv(client, 1024) == b""
    except ConnectionError:
        return True
