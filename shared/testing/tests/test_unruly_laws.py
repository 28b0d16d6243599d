"""Each law of the matrix is broken by the evidence that breaks it, and by no other."""

from collections.abc import Sequence
from typing import Any

import pytest

from pointsman_testing.unruly.asking import ClientOutcome
from pointsman_testing.unruly.cells import Cell, Door, Place, cells, sample
from pointsman_testing.unruly.engine import End, EngineWork
from pointsman_testing.unruly.figures import figures, summed
from pointsman_testing.unruly.ground import Records
from pointsman_testing.unruly.laws import Evidence, broken, findings
from pointsman_testing.unruly.rows import ROWS, MisbehaviourRow

PLACE = Place("frontend", 2, "whole")
BAD, GOOD = PLACE.workers
ROW = {row.name: row for row in ROWS}
DOCTOR = f" ✓ NATS is fine\n ! pool {PLACE.name}: 1 of 2 workers\n   serve; {BAD} ejected: 5 × 500\n"


def asked(
    number: int, *, status: int = 200, took: float = 0.1, whole: bool = True, sent: float = 11.0
) -> ClientOutcome:
    good = status == 200
    return ClientOutcome(f"r{number}", sent, took, status, begun=good, whole=good and whole)


def done(number: int, began: float = 11.0, *, head: float | None = None, end: End = "done") -> EngineWork:
    return EngineWork(f"r{number}", began, head, ended=began + 0.1, end=end)


def evidence(
    row: MisbehaviourRow = ROW["status 500"],
    clients: Sequence[ClientOutcome] = (),
    at_bad: Sequence[EngineWork] = (),
    at_good: Sequence[EngineWork] = (),
    bad: int = 1,
    **more: Any,
) -> Evidence:
    one = {asked.request: 1 for asked in clients}
    usual: dict[str, Any] = {"back_s": 1.0, "doctor": DOCTOR, "records": Records(one, one)}
    return Evidence(
        Cell(row, PLACE, bad), 10.0, 18.0, clients, {BAD: at_bad, GOOD: at_good}, **{**usual, **more}
    )  # fmt: skip


def laws(of: Evidence) -> list[str]:
    return [words[:2] for words in broken(of)]


def test_evidence_of_a_gateway_that_does_all_well_breaks_nothing() -> None:
    refused = [EngineWork("r1", 11.0, ended=11.0, end="refused"), *(done(20 + n, began=15.0 + n) for n in range(3))]
    assert laws(evidence(clients=[asked(1), asked(2)], at_bad=refused, at_good=[done(1), done(2)])) == []


def test_an_error_breaks_l1_unless_the_answer_had_begun_at_the_bad_engine() -> None:
    assert laws(evidence(clients=[asked(1, status=500)])) == ["L1"]
    cut = asked(1, whole=False)
    assert laws(evidence(clients=[cut], at_good=[done(1)])) == ["L1"]
    assert laws(evidence(clients=[cut], at_bad=[done(1, end="cut")])) == []


@pytest.mark.parametrize(
    ("name", "place", "bad", "errors"),
    [
        ("status 429", Place("envoy", 8, "whole"), 4, 2),
        ("status 429", Place("envoy", 3, "whole"), 2, 0),
        ("status 429", Place("envoy", 8, "whole"), 1, 0),
        ("status 429", Place("frontend", 8, "whole"), 4, 0),
        ("process gone", Place("frontend", 8, "whole"), 4, 0),
        ("looks idle", Place("envoy", 8, "whole"), 4, 0),
        ("status 500", Place("frontend", 3, "whole"), 2, 0),
        ("status 500", Place("frontend", 8, "whole"), 4, 2),
        ("lists another model", Place("frontend", 3, "stream"), 2, 0),
        ("lists another model", Place("frontend", 8, "stream"), 4, 2),
        ("answers what isn't HTTP", Place("frontend", 3, "whole"), 2, 2),
        ("answers what isn't HTTP", Place("frontend", 3, "whole"), 1, 0),
        ("restarts every 1.5 s", Place("frontend", 2, "whole"), 1, 0),
    ],
)
def test_two_of_a_hundred_errors_break_l1_unless_all_tries_of_a_request_may_meet_bad_engines(
    name: str, place: Place, bad: int, errors: int
) -> None:
    def of(failed: int) -> list[str]:
        clients = [asked(number, status=502 if number < failed else 200, sent=13.0) for number in range(100)]
        found = evidence(ROW[name], clients, doctor=None)
        found.cell = Cell(ROW[name], place, bad)
        found.work = dict.fromkeys(place.workers, ())
        return laws(found)

    assert of(errors) == []
    assert of(errors + 1) == ["L1"]


def test_in_the_first_two_seconds_as_many_errors_break_no_law_as_meet_bad_engines_alone_by_chance() -> None:
    """Two tries meet two of the four bad ones among eight in 4/8 · 3/7 of all cases: 21 of 100."""

    def of(failed: int) -> list[str]:
        clients = [asked(number, status=502 if number < failed else 200) for number in range(100)]
        found = evidence(ROW["answers what isn't HTTP"], clients, doctor=None)
        place = Place("frontend", 8, "whole")
        found.cell = Cell(ROW["answers what isn't HTTP"], place, 4)
        found.work = dict.fromkeys(place.workers, ())
        return laws(found)

    assert of(23) == []
    assert of(24) == ["L1"]


def test_a_request_that_is_swallowed_for_long_breaks_l1_unless_its_answer_had_begun() -> None:
    late = asked(1, took=7.0)
    assert laws(evidence(clients=[late], at_bad=[done(1)])) == ["L1"]
    assert laws(evidence(clients=[late], at_bad=[done(1, head=11.1)])) == []


def test_a_bad_engine_that_goes_on_getting_requests_breaks_l2() -> None:
    many = [done(n, began=15.0 + n / 10) for n in range(20)]
    assert laws(evidence(at_bad=many)) == ["L2"]
    assert laws(evidence(at_good=many)) == []
    assert laws(evidence(row=ROW["looks idle"], at_bad=many)) == []
    assert laws(evidence(at_bad=many, bad=2, doctor=None)) == []


def test_an_engine_that_never_gets_its_share_again_breaks_l2() -> None:
    assert laws(evidence(back_s=None)) == ["L2"]


def test_with_all_engines_bad_less_than_round_robin_breaks_l3() -> None:
    half = ROW["half of the requests get 500"]
    few = [asked(n, status=200 if n < 3 else 500) for n in range(10)]
    assert laws(evidence(row=half, clients=few, bad=2, doctor=None)) == ["L3"]
    assert laws(evidence(row=half, clients=few[:4], bad=2, doctor=None)) == []
    assert laws(evidence(clients=[asked(1, status=503)], bad=2, doctor=None)) == []
    assert laws(evidence(clients=[asked(1, status=503, took=20.0)], bad=2, doctor=None)) == ["L3"]
    assert laws(evidence(row=ROW["health takes 7 s"], clients=[asked(1, status=503)], bad=2, doctor=None)) == ["L3"]


def test_work_that_a_signal_ends_and_a_third_start_break_l4() -> None:
    row = ROW["metrics take 5 s"]
    told = DOCTOR.replace("5 × 500", "metrics are late")
    aborted = done(1, end="aborted")
    assert laws(evidence(row=row, clients=[asked(1)], at_bad=[aborted], doctor=told)) == ["L4"]
    assert laws(evidence(row=ROW["hangs before the head"], at_bad=[aborted], doctor=None)) == []
    assert laws(evidence(at_good=[aborted])) == ["L4"]
    begun = EngineWork("r1", 11.0, 11.1, 11.1, ended=13.0, end="aborted")
    assert laws(evidence(row=ROW["trickles"], at_bad=[begun])) == ["L4"]
    assert laws(evidence(at_good=[done(1), done(1), done(1)])) == ["L4"]
    assert laws(evidence(at_good=[done(1), done(1)], at_bad=[done(1, end="refused")])) == []


@pytest.mark.parametrize(("door", "said"), [("frontend", ["L4"]), ("envoy", [])])
def test_work_that_ends_because_the_bad_engine_answered_at_last_breaks_l4_at_the_frontend(
    door: Door, said: list[str]
) -> None:
    place = Place(door, 2, "whole")
    bad, good = place.workers
    work = {bad: [done(1, head=18.0)], good: [done(1, end="aborted")]}
    one = {"r1": 1}
    doctor = DOCTOR.replace(BAD, bad).replace("500", "no answer")
    cell = Cell(ROW["hangs before the head"], place, 1)
    assert laws(Evidence(cell, 10.0, 18.0, [asked(1)], work, 1.0, doctor, Records(one, one))) == said


@pytest.mark.parametrize(("answered", "said"), [(18.0, []), (15.0, ["L4"])])
def test_engines_that_begin_what_they_swallowed_when_they_are_good_break_nothing_behind_envoy(
    answered: float, said: list[str]
) -> None:
    place = Place("envoy", 8, "whole")
    work: dict[str, list[EngineWork]] = {name: [] for name in place.workers}
    work |= {name: [done(1, head=answered)] for name in place.workers[:3]}
    cell = Cell(ROW["hangs before the head"], place, 4)
    assert laws(Evidence(cell, 10.0, 18.0, [asked(1)], work, 1.0, None, None)) == said


def test_a_missing_or_second_record_breaks_l5() -> None:
    clients = [asked(1), asked(2)]
    one = {"r1": 1, "r2": 1}
    assert laws(evidence(clients=clients, records=Records({"r1": 1}, one))) == ["L5"]
    assert laws(evidence(clients=clients, records=Records(one, {"r1": 2, "r2": 1}))) == ["L5"]
    assert laws(evidence(clients=clients, records=None)) == []


@pytest.mark.parametrize("said", ["", DOCTOR.replace("500", "well"), DOCTOR.replace("!", "✓")])
def test_a_doctor_who_names_no_engine_or_no_reason_breaks_l6(said: str) -> None:
    assert laws(evidence(doctor=said)) == ["L6"]


def test_the_law_that_is_not_kept_yet_is_that_of_the_diagnosis_in_two_kinds_of_cells() -> None:
    found = evidence(row=ROW["hangs after the head"], back_s=None, doctor="")
    assert laws(found) == ["L2", "L6"]
    found.cell = found.cell._replace(place=Place("envoy", 2, "whole"))
    found.work = dict.fromkeys(found.cell.place.workers, ())
    assert laws(found) == ["L2"]


def test_lines_that_doctor_wraps_belong_together() -> None:
    assert findings(DOCTOR) == [f"! pool {PLACE.name}: 1 of 2 workers serve; {BAD} ejected: 5 × 500"]


def test_a_sample_is_the_same_for_a_seed_and_has_different_rows_and_pools() -> None:
    assert sample(7, 12) == sample(7, 12) != sample(8, 12)
    assert len({cell.row.name for cell in sample(7, 12)}) == 12
    assert len({cell.place for cell in sample(7, 12)}) == 12
    assert len(set(map(str, cells()))) == len(cells()) == 36 * len(ROWS)


def test_figures_leave_out_shapes_in_which_nothing_can_be_saved() -> None:
    one = figures("a", evidence(clients=[asked(1, status=500), asked(2)], at_bad=[done(1, began=16.0)]), ["L1: x"])
    both = figures("a", evidence(clients=[asked(3, status=500)], bad=2), [])
    total = summed([one, both])
    assert (total.cells, total.held, total.asked, total.failed, total.share) == (2, 1, 2, 1, 2.0)
