"""Engines that misbehave, in shapes that a seed chooses: the laws of the matrix hold in each cell.

`python -m benchmarks.unruly` tries the whole matrix.
"""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from pointsman_cli.stack import envoy
from pointsman_testing.stack import StackFactory
from pointsman_testing.unruly.cells import Cell, sample
from pointsman_testing.unruly.running import CellVerdict, run
from pointsman_testing.unruly.world import Address, EnvoyOf, UnrulyWorld, gateway

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

SEED: Final = int(os.environ["POINTSMAN_UNRULY_SEED"])
"""Part of the test's name, so that the last line about a failure of any kind has it."""
CELLS: Final = 12
AT_ONCE: Final = 6


def envoy_document(adapter: Address, engines: Sequence[Address]) -> Mapping[str, Any]:
    return envoy.document(("127.0.0.1", 0), [adapter], engines)


@pytest.fixture(scope="module", params=[SEED], ids="seed={}".format)
def chosen(request: pytest.FixtureRequest) -> list[Cell]:
    seed: int = request.param
    return sample(seed, CELLS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    stacks: StackFactory, chosen: list[Cell], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[UnrulyWorld]:
    front = EnvoyOf(envoy.executable(), envoy_document)
    folder: Path = tmp_path_factory.mktemp("unruly")
    async with gateway(stacks, folder, dict.fromkeys(cell.place for cell in chosen), front) as started:
        yield started


def _wrong(verdicts: Sequence[CellVerdict]) -> dict[str, list[str]]:
    """The broken laws of each cell that is decided."""
    return {str(verdict.cell): verdict.broken for verdict in verdicts if verdict.broken and verdict.decided}


@pytest.mark.requirement("UNRULY-1", "UNRULY-2", "UNRULY-3", "UNRULY-4", "UNRULY-5", "UNRULY-6")
async def test_the_laws_hold_whatever_engines_do(world: UnrulyWorld, chosen: list[Cell]) -> None:
    """A cell that breaks a law twice in a row is a break: cells are live, and a single one may be ill-timed. Two cells
    at most have this second trial."""
    verdicts = await run(world, chosen, AT_ONCE)
    wrong = _wrong(verdicts)
    first = dict(wrong)
    if 0 < len(wrong) <= 2:
        again = await run(world, [verdict.cell for verdict in verdicts if str(verdict.cell) in wrong], 1)
        wrong = _wrong(again)
    assert not wrong, f"{wrong}; at first: {first}"
    decided = sum(verdict.decided for verdict in verdicts)
    if decided < CELLS / 2:
        pytest.skip(f"the machine stood still: {decided} of {CELLS} cells are decided")
