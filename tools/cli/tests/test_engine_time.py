"""The table of engine time shows each row's share of all engines' time, and all of it below."""

import io

from rich.console import Console

from pointsman_cli.explain.engine_time import notes, plain, table
from pointsman_contracts.engine_time import EngineTimeSum, EngineTimeSums

ACME = EngineTimeSum(state="answers", tenant="acme", answers=3, estimated=1, time_us=2_500_000, time_nanos=2_500_000)
IDLE = EngineTimeSum(state="idle", tenant="", time_us=7_500_000, time_nanos=7_500_000)
SUMS = EngineTimeSums(recorder="r", rows=(ACME, IDLE), total_us=10_000_000, total_nanos=10_000_000)


def test_idle_time_is_a_row_of_its_own_and_the_last_row_is_all_time_of_the_engines() -> None:
    shown = io.StringIO()
    Console(file=shown, width=100).print(table(SUMS, ("tenant",)))
    rows = [line.split() for line in shown.getvalue().splitlines()]
    assert rows == [
        ["time", "tenant", "answers", "engine", "seconds", "share", "cost"],
        ["answers", "acme", "3", "2.5", "25.0%", "$0.0025"],
        ["idle", "-", "0", "7.5", "75.0%", "$0.0075"],
        ["engines", "10.0", "$0.01"],
    ]


def test_a_row_for_programs_has_seconds_and_dollars_as_plain_decimals() -> None:
    assert plain(ACME, ("tenant",), SUMS.total_us) == {
        "tenant": "acme", "state": "answers", "answers": 3, "estimated": 1, "engine_seconds": "2.500000",
        "share": "0.250000", "cost": "0.0025",
    }  # fmt: skip


def test_a_reader_learns_what_is_estimated_and_that_nothing_is_counted_without_a_price() -> None:
    assert [note.split(",")[0] for note in notes(SUMS)] == ["Estimated"]
    assert "`cost`" in notes(EngineTimeSums(recorder="r"))[0]
