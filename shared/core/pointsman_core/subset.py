"""The endpoints that a proxy restricts a choice to, named by host or by host and port."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where an endpoint is: `10.0.0.1:8000` and `10.0.0.1`, `[::1]:8000` and `::1`."""

    address: str
    host: str


def named(places: Sequence[Place], subset: Iterable[str]) -> list[bool]:
    """Which of the places the entries name.

    An entry with a port means that one endpoint, where there is one; otherwise its host, whatever the port: proxies
    name pods by ports of theirs (endpoint-picker.md §1.11).
    """
    addresses = {place.address for place in places}
    wanted = {each if each in addresses else _host(each) for each in (entry.strip().lower() for entry in subset)}
    return [place.address in wanted or place.host in wanted for place in places]


def _host(entry: str) -> str:
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry
