"""Engines that misbehave, in every shape: which laws hold, beside a plain round-robin balancer and other routers.

`python -m benchmarks.unruly` tries the whole matrix (`pointsman_testing.unruly`): misbehaviour x {1, 2, 3, 8 engines;
one, half, all of them} x {frontend, Envoy} x {whole answers, streams}. `--cells 40 --seed 7` tries a sample, `--only
'status 5|hang'` rows by their names, `--place f3w` pools by theirs.
"""

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import uvloop

from benchmarks.machine import describe
from pointsman_cli import envoy
from pointsman_testing.stack import StackFactory
from pointsman_testing.unruly.cells import Cell, cells, sample
from pointsman_testing.unruly.running import Verdict, run
from pointsman_testing.unruly.world import Address, EnvoyOf, gateway

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


async def ours(wanted: Sequence[Cell], at_once: int) -> list[Verdict]:
    """Try these cells on Pointsman."""
    number = 0

    def tell(verdict: Verdict) -> None:
        nonlocal number
        number += 1
        words = "holds" if not verdict.broken else "BROKEN" if verdict.decided else "undecided"
        print(f"{number:4}/{len(wanted)} {words:9} {verdict.cell}", flush=True)
        for each in verdict.broken:
            print(f"               {each}", flush=True)

    with TemporaryDirectory() as name:
        folder = Path(name)
        front = EnvoyOf(await asyncio.to_thread(envoy.executable), document)
        places = dict.fromkeys(cell.place for cell in wanted)
        async with gateway(StackFactory(folder, SAMPLE), folder, places, front) as world:
            return await run(world, wanted, at_once, tell)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=0, help="how many, by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="regular expression for names of rows")
    parser.add_argument("--place", default=".*", help="regular expression for pools: door, engines, form, as in f3w")
    parser.add_argument("--bad", type=int, default=0, help="only with so many bad engines")
    parser.add_argument("--at-once", type=int, default=6, help="cells that run at the same time")
    options = parser.parse_args()
    wanted = chosen(options)
    print(f"{describe()}\n{len(wanted)} cells, seed {options.seed}")
    verdicts = uvloop.run(ours(wanted, options.at_once))
    failed = [verdict for verdict in verdicts if verdict.broken and verdict.decided]
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} cells hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
