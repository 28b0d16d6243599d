"""Endpoints in the form that Envoy reads: `ip:port`, in order (Endpoint Picker Protocol: Gateway API inference
extension, proposal 004)."""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.subset import Place, named

SCORES: Final = "x-gateway-destination-endpoint-scores"
"""Header of a decision, and key of the metadata that its value becomes."""
DESTINATION: Final = "x-gateway-destination-endpoint"
"""Request header, and key of the metadata namespace `envoy.lb`; both have the same value."""


class Destination(NamedTuple):
    """An endpoint that Envoy can be sent to."""

    worker: str
    address: str
    """`ip:port`; an IPv6 address in brackets."""
    rank: int | None = None
    """The data-parallel rank that the request asks for there; None: it asks for none."""


def destinations(endpoints: Iterable[ChosenEndpoint]) -> list[Destination]:
    """The endpoints that Envoy can reach, in order, each address once.

    Envoy takes addresses, not names, and sends every attempt the same body to the same path: an endpoint that serves
    another model, or whose URL has a path, is left out, and so is one of another data-parallel rank than the first one.
    """
    found: dict[str, Destination] = {}
    for endpoint in endpoints:
        address = address_of(endpoint.url)
        if address is not None and endpoint.target is None:
            found.setdefault(address, Destination(endpoint.worker, address, endpoint.rank))
    kept = list(found.values())
    return [each for each in kept if each.rank == kept[0].rank]


def within(chosen: list[Destination], subset: tuple[str, ...] | None) -> list[Destination]:
    """The destinations in Envoy's subset. None: Envoy doesn't restrict the choice."""
    if subset is None:
        return chosen
    kept = named([Place(each.address, each.address.rpartition(":")[0].strip("[]")) for each in chosen], subset)
    return [each for each, keep in zip(chosen, kept, strict=True) if keep]


@lru_cache(maxsize=4096)
def address_of(url: str) -> str | None:
    """`ip:port` of an endpoint's URL; None when it has a name or a path. TLS is Envoy's to begin, by its cluster."""
    try:
        parts = urlsplit(url)
        host = ipaddress.ip_address(parts.hostname or "")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/"):
        return None
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


def served_by(chosen: Sequence[Destination], address: str) -> int | None:
    """Which of them answered, by the address that Envoy reports: the first when it reports none; None: none of them."""
    if not address or chosen[0].address == address:
        return 0
    return next((index for index, each in enumerate(chosen) if each.address == address), None)
