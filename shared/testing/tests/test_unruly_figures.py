"""A run of the matrix goes on where it was stopped."""

from pathlib import Path

import msgspec

from pointsman_testing.unruly.cells import cells
from pointsman_testing.unruly.figures import CellFigures, read_figures, untried


def figure(system: str, number: int) -> CellFigures:
    cell = cells()[number]
    return CellFigures(system, cell.row.name, cell.place.name, cell.place.engines, cell.bad, 0, 0, 0, 0, 0, None, ())


def test_cells_with_a_result_are_left_out_and_a_half_written_result_is_none(tmp_path: Path) -> None:
    file = tmp_path / "results"
    assert read_figures(file) == []
    found = [figure("round-robin", 0), figure("round-robin", 2)]
    half = msgspec.json.encode(figure("round-robin", 1))[:40]
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in found) + half)
    wanted = cells()[:4]
    assert untried(wanted, lambda _: "round-robin", read_figures(file)) == [wanted[1], wanted[3]]
    assert untried(wanted, lambda _: "vllm-router", read_figures(file)) == wanted
