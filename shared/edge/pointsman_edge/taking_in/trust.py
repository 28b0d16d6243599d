"""Decides which peers are trusted to name the client behind them."""

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_REMEMBERED = 4096


class TrustedProxies:
    """Peers whose identity and forwarding headers are trusted."""

    def __init__(self, networks: Iterable[Network], *, unnamed: bool = False) -> None:
        """`unnamed`: trust peers of unknown address, too."""
        self._networks = tuple(networks)
        self._unnamed = unnamed
        self._known: dict[str, bool] = {}

    def is_trusted(self, host: str) -> bool:
        """Whether `host` (an IP address as text, or nothing when it isn't known) is one of them."""
        if not host:
            return self._unnamed
        if not self._networks:
            return False
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[host] = self._look_up(host)
        return known

    def client_of(self, peer: str, forwarded_for: str | None) -> str:
        """The address of the client: the last one in `X-Forwarded-For` that isn't a trusted proxy's own.

        Entries before it were written by the client itself and prove nothing.
        """
        if forwarded_for is None or not self.is_trusted(peer):
            return peer
        client = peer
        for entry in reversed(forwarded_for.split(",")):
            client = _address(entry)
            if not self.is_trusted(client):
                break
        return client

    def _look_up(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _address(entry: str) -> str:
    """An entry of `X-Forwarded-For` without its port."""
    text = entry.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
