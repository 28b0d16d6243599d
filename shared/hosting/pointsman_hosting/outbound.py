"""HTTP to addresses of a configuration: names are resolved here, and only allowed addresses are connected to.

A literal address was checked with the configuration. A name is checked each time that it is resolved, since
it may lead somewhere else by then.
"""

import ipaddress
import socket
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from pointsman_core.url_addresses import check_address
from pointsman_runtime.reaching.http_names import NameResolver, http_connector


class AddressRefused(OSError):
    """A name leads to an address that may not be connected to. The text is for operators."""


class CheckedResolver(AbstractResolver):
    """Resolves names as the system does; an answer that has one refused address is refused whole."""

    def __init__(self, *, private: bool, inner: AbstractResolver | None = None) -> None:
        self._private: Final = private
        self._inner: Final = inner or NameResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Like `AbstractResolver.resolve`. Raises AddressRefused."""
        found = await self._inner.resolve(host, port, family)
        for result in found:
            address = ipaddress.ip_address(result["host"].partition("%")[0])
            try:
                check_address(host, address, private=self._private)
            except ValueError as refused:
                raise AddressRefused(str(refused)) from None
        return found

    async def close(self) -> None:
        """Implements `AbstractResolver.close`."""
        await self._inner.close()


def connector(*, private: bool, limit: int = 100) -> aiohttp.TCPConnector:
    """Connections of a session to what a configuration names; `private`: private addresses too. Its requests have
    `allow_redirects=False`: an answer doesn't say where to ask next."""
    return http_connector(limit=limit, resolver=CheckedResolver(private=private))


def reason_of(error: Exception) -> str:
    """Why a request got no answer, without anything of the request."""
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, AddressRefused):
        return str(error.os_error)
    return type(error).__name__
