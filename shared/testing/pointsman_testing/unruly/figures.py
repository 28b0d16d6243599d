"""The figures of one cell, for tables."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pointsman_testing.unruly.cells import Cell
from pointsman_testing.unruly.laws import LEARNT_S, MOVED_S, Evidence


class CellFigures(msgspec.Struct, frozen=True):
    """The observations of the clients and engines of one cell."""

    system: str
    row: str
    place: str
    """Name of the pool, which tells door, engines and form."""
    engines: int
    bad: int
    asked: int
    """Requests sent while the engines misbehaved."""
    failed: int
    """Those of them that didn't end with a good answer."""
    late: int
    """Those that waited for it for longer than `MOVED_S`."""
    starts: int
    """Requests that reached any engine from `LEARNT_S` on until the engines were good again."""
    bad_starts: int
    """Those of them that reached an engine that misbehaves."""
    back_s: float | None
    broken: tuple[str, ...]
    """The laws, each once."""
    why: tuple[str, ...] = ()
    """Each broken law, with the figures that show it."""


def figures(system: str, evidence: Evidence, broken: Sequence[str]) -> CellFigures:
    """Sum up a cell."""
    cell = evidence.cell
    during = [one for one in evidence.asked if evidence.bad_at <= one.sent < evidence.good_at]
    starts = {
        name: sum(evidence.bad_at + LEARNT_S <= one.began < evidence.good_at for one in found)
        for name, found in evidence.work.items()
    }
    return CellFigures(
        system=system,
        row=cell.row.name,
        place=cell.place.name,
        engines=cell.place.engines,
        bad=cell.bad,
        asked=len(during),
        failed=sum(not one.whole for one in during),
        late=sum(one.whole and one.took > MOVED_S for one in during),
        starts=sum(starts.values()),
        bad_starts=sum(starts[name] for name in cell.bad_workers),
        back_s=evidence.back_s,
        broken=tuple(sorted({words[:2] for words in broken})),
        why=tuple(broken),
    )


def read_figures(file: Path) -> list[CellFigures]:
    """The results in a file of JSON lines; none where it doesn't exist. A last line that was half written is left
    out."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [msgspec.json.decode(line, type=CellFigures) for line in lines]


def untried(wanted: Sequence[Cell], system: Callable[[Cell], str], found: Iterable[CellFigures]) -> list[Cell]:
    """The cells that have no result yet. `system`: the name that a cell's result has for what is tried."""
    done = {(one.system, one.row, one.place, one.bad) for one in found}
    return [cell for cell in wanted if (system(cell), cell.row.name, cell.place.name, cell.bad) not in done]


class Sum(NamedTuple):
    """Figures of several cells of one row and one system."""

    cells: int
    held: int
    """Cells in which no law is broken."""
    asked: int
    failed: int
    late: int
    share: float | None
    """The bad engines' part of the starts, as a multiple of an equal share; None: no cell has a good engine."""
    broken: tuple[str, ...]


def summed(of: Sequence[CellFigures]) -> Sum:
    """Sum up cells. Failures and shares are of those with a good engine; where all are bad, nothing can be saved."""
    some_good = [one for one in of if one.bad < one.engines]
    fair = sum(one.starts * one.bad / one.engines for one in some_good)
    return Sum(
        cells=len(of),
        held=sum(not one.broken for one in of),
        asked=sum(one.asked for one in some_good),
        failed=sum(one.failed for one in some_good),
        late=sum(one.late for one in some_good),
        share=sum(one.bad_starts for one in some_good) / fair if fair else None,
        broken=tuple(sorted({law for one in of for law in one.broken})),
    )
