"""The report of a sidecar about the leg that was to compute the prompt."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.message import MalformedMessage, read_part
from pointsman_contracts.response import LegReport
from pointsman_epp_adapter.domain.mutation import Header

REPORT: Final = b"x-pointsman-prefill-leg"
"""Written by `pointsman-worker-agent --pd-sidecar`: a `LegReport` without its worker."""
INTENDED: Final = frozenset({"answered", "skipped"})
"""After any other outcome the request took longer than it should have."""
JUDGED: Final = frozenset({"refused", "failed", "timeout", "limited", "denied", "missing"})
"""Outcomes that count against the engine."""
_PREFILLER: Final = "x-prefiller-host-port"
_PREFILLER_RANK: Final = "x-prefiller-rank"


class Prefiller(NamedTuple):
    """The engine that is to compute the prompt."""

    address: str
    rank: int | None
    """Its data-parallel rank; None where the address leads to one worker."""


def prefiller(edits: Iterable[HeaderEdit]) -> Prefiller | None:
    """None where the endpoint that answers computes the prompt."""
    address, rank = "", ""
    for edit in edits:
        if edit.name == _PREFILLER:
            address = (edit.value or "").partition(",")[0]
        elif edit.name == _PREFILLER_RANK:
            rank = (edit.value or "").partition("/")[0]
    return Prefiller(address, int(rank) if rank.isdecimal() else None) if address else None


def leg_report(headers: Iterable[Header], worker: str, decided_s: float) -> LegReport | None:
    """The report in an answer's headers; None without one that can be read. It begins when the request was decided."""
    for name, value in headers:
        if name == REPORT:
            try:
                told = read_part(LegReport, value)
            except MalformedMessage:
                return None
            return replace(told, worker=worker, began_ms=round(decided_s * 1000.0, 3))
    return None
