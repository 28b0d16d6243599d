"""Engines that misbehave, in every shape: which laws hold, beside a plain round-robin balancer and other routers.

`python -m benchmarks.unruly` tries the whole matrix (`pointsman_testing.unruly`): misbehaviour x {1, 2, 3, 8 engines;
one, half, all of them} x {frontend, Envoy} x {whole answers, streams}. `--cells 40 --seed 7` tries a sample, `--only
'status 5|hang'` rows by their names, `--place f3w` pools by theirs. `--systems` names what is tried: pointsman, a
plain round-robin, and vllm-router with the policy round_robin, where it is installed.

`--results FILE` adds the figures of each decided cell to a file, one JSON object a line. `--resume FILE` does so too,
and leaves out the cells that the file has: the whole matrix can be tried in pieces. The table at the end is of all that
the file has then.
"""

import argparse
import asyncio
import random
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.machine import describe
from benchmarks.unruly.other_routers import installed, router
from benchmarks.unruly.table import LEGEND, table
from pointsman_cli.stack import envoy
from pointsman_testing.stack import StackFactory
from pointsman_testing.unruly.cells import Cell, cells, sample
from pointsman_testing.unruly.figures import CellFigures, figures, read_figures, untried
from pointsman_testing.unruly.ground import TrialGround
from pointsman_testing.unruly.running import CellVerdict, run
from pointsman_testing.unruly.world import Address, EnvoyOf, gateway

OURS: Final = "pointsman"
_STOPPED: Final = 128 + signal.SIGTERM

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"


def document(adapter: Address, engines: Sequence[Address]) -> Mapping[str, Any]:
    return envoy.document(("127.0.0.1", 0), [adapter], engines)


def chosen(options: argparse.Namespace) -> list[Cell]:
    """The cells that the options name."""
    among = [
        cell
        for cell in cells()
        if re.search(options.only, cell.row.name)
        and re.fullmatch(options.place, cell.place.name)
        and (not options.bad or cell.bad == options.bad)
    ]
    return sample(options.seed, options.cells or len(among), among)


class Report:
    """Prints each cell as it ends, and keeps its figures."""

    def __init__(self, file: Path | None, found: Iterable[CellFigures]) -> None:
        self.found = list(found)
        """With those that the file had."""
        self.failed = 0
        self.undecided = 0
        self._file = file

    def begin(self, system: str, cells: int) -> None:
        """So many cells of this system follow."""
        self._system, self._number, self._cells = system, 0, cells

    def tell(self, verdict: CellVerdict) -> None:
        self._number += 1
        words = "holds" if not verdict.broken else "BROKEN" if verdict.decided else "undecided"
        print(f"{self._system} {self._number:4}/{self._cells} {words:9} {verdict.cell}", flush=True)
        for each in verdict.broken:
            print(f"               {each}", flush=True)
        if not verdict.decided:
            self.undecided += 1
            return
        self.failed += bool(verdict.broken) and self._system == OURS
        found = figures(_column(self._system, verdict.cell), verdict.evidence, verdict.broken)
        self.found.append(found)
        if self._file is not None:
            with self._file.open("ab") as out:
                out.write(msgspec.json.encode(found) + b"\n")


def _column(system: str, cell: Cell) -> str:
    return f"{OURS}, {cell.place.door}" if system == OURS else system


async def measure(systems: Sequence[str], wanted: Sequence[Cell], at_once: int, report: Report) -> None:
    """Try these cells on each system. SIGTERM cancels it, as SIGINT does, so that no process is left behind."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    for system in systems:
        cells = untried(wanted, partial(_column, system), report.found)
        if not cells:
            continue
        places = list(dict.fromkeys(cell.place for cell in cells))
        report.begin(system, len(cells))
        with TemporaryDirectory() as name:
            folder = Path(name)
            if system == OURS:
                front = EnvoyOf(await asyncio.to_thread(envoy.executable), document)
                ground: AbstractAsyncContextManager[TrialGround] = gateway(
                    StackFactory(folder, SAMPLE), folder, places, front
                )
            else:
                ground = router(system, places, folder)
            async with ground as there:
                await run(there, cells, at_once, report.tell)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=0, help="how many, by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="regular expression for names of rows")
    parser.add_argument("--place", default=".*", help="regular expression for pools: door, engines, form, as in f3w")
    parser.add_argument("--bad", type=int, default=0, help="only with so many bad engines")
    parser.add_argument("--at-once", type=int, default=6, help="cells that run at the same time")
    parser.add_argument("--systems", nargs="+", default=[OURS, *installed()], choices=[OURS, *installed()])
    parser.add_argument("--results", type=Path, help="add the figures of each cell to this file, as JSON lines")
    parser.add_argument("--resume", type=Path, help="the same, and leave out the cells that the file has")
    parser.add_argument("--table", choices=["rows", "groups"], help="only print this table of the results in that file")
    options = parser.parse_args()
    if options.table:
        found = read_figures(options.resume or options.results)
        print("\n".join(table(found, grouped=options.table == "groups")))
        return 0
    wanted = chosen(options)
    report = Report(options.resume or options.results, read_figures(options.resume) if options.resume else ())
    print(f"{describe()}\n{len(wanted)} cells, seed {options.seed}; results so far: {len(report.found)}", flush=True)
    stopped = False
    try:
        uvloop.run(measure(options.systems, wanted, options.at_once, report))
    except (asyncio.CancelledError, KeyboardInterrupt):
        stopped = True
    print(f"\n{LEGEND}")
    print("\n".join(table(report.found)))
    if report.undecided:
        print(f"\n{report.undecided} cells are undecided: the machine stood still.")
    return _STOPPED if stopped else 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
