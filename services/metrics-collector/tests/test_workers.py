"""Who is registered, who speaks, who fell silent."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import WorkerView
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerFinding, WorkerLoad, WorkerRegistration
from pointsman_metrics_collector.domain.workers import (
    STRANGER_KEPT_S,
    Joined,
    Left,
    Silent,
    WorkerTable,
)


def registration(worker: str = "w1", boot_id: str = "b1", pool: str = "p", **changes: object) -> WorkerRegistration:
    fields: dict[str, object] = {
        "worker": worker,
        "pool": pool,
        "url": f"http://{worker}",
        "models": ("m",),
        "loras": ("sql",),
        "boot_id": boot_id,
        "agent": "a",
        "version": "0",
        "registered_ms": 0,
    }
    return read_fields(WorkerRegistration, fields | changes)


def load(worker: str = "w1", boot_id: str = "b1", pool: str = "p", **changes: object) -> WorkerLoad:
    fields: dict[str, object] = {"worker": worker, "pool": pool, "boot_id": boot_id, "sequence": 1, "at_ms": 0}
    return read_fields(WorkerLoad, fields | changes)


def states(table: WorkerTable, at: float) -> dict[str, str]:
    return {view.worker: view.state for view in table.view_pool("p", at)}


def test_a_worker_is_seen_with_its_registration_and_its_last_report() -> None:
    table = WorkerTable()
    assert table.add_registration(registration(), 0.0) == Joined(registration(), "registered")
    assert table.receive_load(load(running=3, waiting=2, kv_usage=0.5), 0.1) is None
    assert table.view_pool("p", 0.35) == (
        WorkerView(
            worker="w1",
            url="http://w1",
            boot_id="b1",
            state="serving",
            models=("m",),
            loras=("sql",),
            running=3,
            waiting=2,
            kv_usage=0.5,
            age_ms=250.0,
            engine="vllm",
        ),
    )
    assert table.list_pools() == ["p"]
    assert table.has_model("p", "sql")
    assert not table.has_model("p", "other")
    assert not table.has_model("q", "m")


def test_a_worker_that_was_never_heard_is_silent_and_has_no_age() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    assert states(table, 0.1) == {"w1": "silent"}
    assert table.view_pool("p", 0.1)[0].age_ms == -1.0


def test_silence_is_reported_once_and_its_end_too() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(), 0.2)
    assert table.find_silent(0.2 + TIMES.worker_silent_s) == []
    assert table.find_silent(1.5) == [Silent(registration(), 1.3)]
    assert states(table, 1.5) == {"w1": "silent"}
    assert table.find_silent(2.0) == []
    assert table.receive_load(load(), 2.1) == Joined(registration(), "heard")
    assert table.receive_load(load(), 2.2) is None
    assert states(table, 2.2) == {"w1": "serving"}


def test_a_new_life_is_reported_and_a_heartbeat_is_not() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    assert table.add_registration(registration(), 2.0) is None
    assert table.add_registration(registration(loras=()), 3.0) is None
    assert table.add_registration(registration(boot_id="b2"), 4.0) == Joined(registration(boot_id="b2"), "restarted")


def test_a_worker_that_leaves_is_gone_and_its_last_state_is_reported() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(state="draining"), 0.1)
    assert table.remove_registration("p", "w1", 0.2) == Left(registration(), "draining")
    assert table.remove_registration("p", "w1", 0.3) is None
    assert table.remove_registration("q", "w1", 0.3) is None
    assert table.view_pool("p", 0.3) == ()
    assert table.list_pools() == []


def test_a_report_that_comes_before_the_registration_counts_with_it() -> None:
    table = WorkerTable()
    table.receive_load(load(running=1), 0.0)
    assert table.view_pool("p", 0.0) == ()
    table.add_registration(registration(), 0.4)
    assert states(table, 0.4) == {"w1": "serving"}
    assert table.view_pool("p", 0.4)[0].age_ms == 400.0


def test_an_engine_that_never_answered_is_reported_with_its_reason_until_it_is_registered_or_silent() -> None:
    table = WorkerTable()
    table.receive_load(load(boot_id="", state="unreachable", reason="connection refused"), 0.0)
    assert table.find_unreached("p", 1.2) == {"w1": "connection refused"}
    assert table.find_unreached("p", 1.3) == {}
    table.receive_load(load(boot_id="", state="unreachable", reason="connection refused"), 2.0)
    table.add_registration(registration(), 2.1)
    assert table.find_unreached("p", 2.1) == {}
    assert table.find_unreached("q", 2.1) == {}


def test_a_worker_that_is_unreachable_is_seen_with_its_reason() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(state="unreachable", reason="no answer from /metrics"), 0.1)
    assert table.view_pool("p", 0.2)[0].reason == "no answer from /metrics"
    table.receive_load(load(), 0.3)
    assert table.view_pool("p", 0.3)[0].reason == ""


def test_a_worker_whose_load_is_unknown_shows_no_figures() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(load_unknown="/metrics answers 404", age_ms=3_600_000), 0.1)
    (view,) = table.view_pool("p", 0.3)
    assert (view.state, view.opaque, view.load_unknown) == ("serving", True, "/metrics answers 404")
    assert view.age_ms == 200.0, "of the report, not of figures that it doesn't have"
    assert table.take_change("p") == (True, True)
    table.receive_load(load(), 0.4)
    assert table.take_change("p") == (True, False)
    (view,) = table.view_pool("p", 0.5)
    assert (view.opaque, view.load_unknown) == (False, "")


def test_the_findings_of_an_agent_are_those_of_its_worker() -> None:
    table = WorkerTable()
    finding = WorkerFinding(kind="shared_url", what="two processes")
    table.set_findings("p", "w1", (finding,))
    table.add_registration(registration(), 0.0)
    table.take_change("p")
    table.set_findings("p", "w1", (finding,))
    assert table.view_pool("p", 0.1)[0].findings == (finding,)
    assert table.take_change("p") == (True, True)
    table.set_findings("p", "w1", ())
    assert table.view_pool("p", 0.1)[0].findings == ()


@pytest.mark.parametrize(("reported", "found"), [(None, 0), (64, 0), (128, 1)])
def test_kv_blocks_of_another_size_than_the_pools_are_a_finding(reported: int | None, found: int) -> None:
    table = WorkerTable()
    table.set_block_tokens({"p": 64})
    table.add_registration(replace(registration(), kv_block_tokens=reported), 0.0)
    findings = table.view_pool("p", 0.1)[0].findings
    assert [finding.kind for finding in findings] == ["kv_block_size"] * found
    assert all("128 tokens" in finding.what and "block_tokens: 64" in finding.what for finding in findings)


def test_reports_of_strangers_are_not_kept_for_ever() -> None:
    table = WorkerTable()
    table.receive_load(load(), 0.0)
    table.find_silent(STRANGER_KEPT_S + 0.1)
    table.add_registration(registration(), STRANGER_KEPT_S + 0.2)
    assert states(table, STRANGER_KEPT_S + 0.2) == {"w1": "silent"}


def test_a_pool_without_workers_is_published_once_more_and_forgotten() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.take_change("p")
    table.remove_registration("p", "w1", 0.1)
    table.find_silent(0.2)
    assert table.take_change("p") == (True, True)
    table.find_silent(0.3)
    assert table.take_change("p") == (False, False)
    assert table.add_registration(registration(), 0.4) == Joined(registration(), "registered")


def test_changes_of_numbers_and_of_state_are_distinguished() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(), 0.1)
    assert table.take_change("p") == (True, True)
    assert table.take_change("p") == (False, False)
    table.receive_load(load(sequence=2, at_ms=9), 0.2)
    assert table.take_change("p") == (False, False)
    table.receive_load(load(waiting=1), 0.3)
    assert table.take_change("p") == (True, False)
    table.receive_load(load(waiting=1, state="unreachable"), 0.4)
    assert table.take_change("p") == (True, True)
    table.find_silent(2.0)
    assert table.take_change("p") == (True, True)
    assert table.take_change("q") == (False, False)


def test_a_return_and_a_new_life_are_more_than_numbers_and_stay_so_until_they_are_reported() -> None:
    table = WorkerTable()
    table.add_registration(registration(), 0.0)
    table.receive_load(load(), 0.1)
    table.find_silent(2.0)
    table.take_change("p")
    table.receive_load(load(), 2.1)
    assert table.take_change("p") == (True, True), "it was silent"
    table.receive_load(load(boot_id="b2"), 2.2)
    assert table.view_pool("p", 2.2)[0].boot_id == "b2", "of the life that speaks, which may register later"
    table.receive_load(load(boot_id="b2", waiting=1), 2.3)
    assert table.take_change("p") == (True, True), "another life spoke before the numbers changed"


def test_the_table_is_complete_when_everybody_was_heard_or_missed() -> None:
    table = WorkerTable()
    assert table.is_complete(0.0)
    table.add_registration(registration("w1"), 0.0)
    table.add_registration(registration("w2"), 0.0)
    table.receive_load(load("w1"), 0.3)
    assert not table.is_complete(0.4)
    assert table.is_complete(1.3)


steps = st.lists(
    st.tuples(
        st.sampled_from(["register", "deregister", "hear", "wait"]),
        st.sampled_from(["w1", "w2"]),
        st.floats(0.01, 2.0),
    ),
    max_size=40,
)


@given(steps)
def test_between_joining_and_leaving_silence_and_return_alternate(acts: list[tuple[str, str, float]]) -> None:
    table, at = WorkerTable(), 0.0
    told: dict[str, list[str]] = {"w1": [], "w2": []}
    for act, worker, wait in acts:
        at += wait
        changes: list[Joined | Silent | Left | None] = [*table.find_silent(at)]
        if act == "register":
            changes.append(table.add_registration(registration(worker), at))
        elif act == "deregister":
            changes.append(table.remove_registration("p", worker, at))
        elif act == "hear":
            changes.append(table.receive_load(load(worker), at))
        for change in changes:
            if change is not None:
                word = change.why if isinstance(change, Joined) else type(change).__name__
                told[change.registration.worker].append(word)
    allowed = {
        "registered": {"Silent", "Left"},
        "Silent": {"heard", "Left"},
        "heard": {"Silent", "Left"},
        "Left": {"registered"},
    }
    for words in told.values():
        assert not words or words[0] == "registered"
        assert all(after in allowed[before] for before, after in itertools.pairwise(words))
