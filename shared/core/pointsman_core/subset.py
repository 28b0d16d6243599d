"""The endpoints that a proxy restricts a choice to, named by host or by host and port."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

HEADERS: Final = ("x-pointsman-destination-endpoint-subset", "x-gateway-destination-endpoint-subset")
"""The headers that carry a subset; the first one present counts. Edges accept them only from trusted proxies. Entries
are separated by commas."""


class Place(NamedTuple):
    """The address of an endpoint: `10.0.0.1:8000` and `10.0.0.1`, `[::1]:8000` and `::1`."""

    address: str
    host: str


def subset_of(headers: Mapping[str, str]) -> tuple[str, ...] | None:
    """The entries; None: the choice isn't restricted."""
    told = next((headers[name] for name in HEADERS if name in headers), None)
    return None if told is None else tuple(part.strip() for part in told.split(",") if part.strip())


@lru_cache(maxsize=4096)
def place_of(url: str) -> Place:
    """The address of the endpoint with this base URL; empty strings for an invalid URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        host, port = None, 0
    if not host:
        return Place("", "")
    return Place(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host)


def named(places: Sequence[Place], subset: Iterable[str]) -> list[bool]:
    """For each place, whether the entries name it.

    An entry with a port means that endpoint, if it exists; otherwise its host on any port: proxies name pods by ports
    of theirs (llm-d-router 0.10).
    """
    addresses = {place.address for place in places}
    wanted = {each if each in addresses else _host(each) for each in (entry.strip().lower() for entry in subset)}
    return [place.address in wanted or place.host in wanted for place in places]


def _host(entry: str) -> str:
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry
