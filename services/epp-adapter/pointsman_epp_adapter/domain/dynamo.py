"""Headers by which Dynamo's frontends are told which worker to use (dynamo.md §2)."""

from collections.abc import Callable, Iterable
from typing import Final

Header = tuple[bytes, bytes]

_PREFILLER: Final = b"x-prefiller-host-port"
_RANK: Final = b"x-data-parallel-rank"


def worker_headers(worker: str, edits: Iterable[Header], worker_at: Callable[[str], str | None]) -> list[Header]:
    """The worker's id, the prefiller's and the rank, by their older and their newer names.

    `edits` are the decision's headers; `worker_at` finds a worker by its address. A worker's id is the name that it is
    registered by.
    """
    found = dict(edits)
    prefiller = worker_at(found[_PREFILLER].decode().partition(",")[0]) if _PREFILLER in found else None
    headers = _both("worker-instance-id", worker)
    if prefiller is not None:
        headers += _both("prefill-instance-id", prefiller)
    if _RANK in found:
        headers += _both("dp-rank", found[_RANK].decode())
    mode = "aggregated" if prefiller is None else "disaggregated"
    return [*headers, (b"x-dynamo-routing-mode", mode.encode())]


def _both(name: str, value: str) -> list[Header]:
    text = value.encode("ascii", "replace")
    return [(f"x-{name}".encode(), text), (f"x-dynamo-{name}".encode(), text)]
