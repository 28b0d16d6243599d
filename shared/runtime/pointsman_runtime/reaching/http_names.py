"""Connectors of aiohttp that find names as all other connections of a process do (`host_names`).

aiohttp's own resolver looks names up in the few threads of the event loop, where names that hang hold up all others,
and a resolver that fails for a while makes every new connection fail.
"""

import socket
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from pointsman_runtime.reaching.host_names import HostNames

KEPT_ALIVE_S: Final = 15.0
"""How long a connection stays open without a request."""


class NameResolver(AbstractResolver):
    """The names of one connector."""

    def __init__(self) -> None:
        self._names: Final = HostNames()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of every family in the order in which to try them. Raises OSError."""
        del family
        found: list[ResolveResult] = []
        for kind, _, protocol, _, place in await self._names.find_addresses(host, port):
            address = str(place[0])
            if len(place) == 4 and place[3]:
                address = f"{address}%{place[3]}"
            found.append(
                ResolveResult(
                    hostname=host, host=address, port=port, family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
                )
            )
        return found

    async def close(self) -> None:
        """Implements `AbstractResolver.close`; lookups end by themselves."""


def http_connector(
    *, limit: int = 100, kept_alive_s: float = KEPT_ALIVE_S, resolver: AbstractResolver | None = None
) -> aiohttp.TCPConnector:
    """Connections of a session. `limit`: how many at once, 0 for any number; `resolver`: instead of `NameResolver`."""
    return aiohttp.TCPConnector(
        limit=limit, keepalive_timeout=kept_alive_s, resolver=resolver or NameResolver(), use_dns_cache=False
    )
