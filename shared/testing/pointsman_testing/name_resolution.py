"""Host names that resolve as a test sets."""

import socket
from collections.abc import Callable

Found = list[tuple[int, int, int, str, tuple[str, int]]]


def leads_to(address: str) -> Callable[..., Found]:
    """Stands for `socket.getaddrinfo`: every name has this IPv4 address."""

    def getaddrinfo(host: object, port: object, *_: object, **__: object) -> Found:
        del host
        number = port if isinstance(port, int) else 0
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, number))]

    return getaddrinfo
