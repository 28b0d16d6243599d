"""Who is registered: the bus decides, the bucket helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_runtime.jetstream.registrations import Registrations

LATER = TIMES.worker_gone_s + 0.1


def registration(boot_id: str = "b1", agent: str = "agent-1", worker: str = "w1") -> WorkerRegistration:
    return WorkerRegistration(
        worker=worker, pool="p", url="http://w1:8000", boot_id=boot_id, agent=agent, version="1", registered_ms=0
    )


def announcement(boot_id: str = "b1", agent: str = "agent-1", *, leaving: bool = False) -> WorkerAnnouncement:
    return WorkerAnnouncement(registration=registration(boot_id, agent), leaving=leaving)


def load() -> WorkerLoad:
    return WorkerLoad(worker="w1", pool="p", boot_id="b1", sequence=1, at_ms=0)


class Told:
    """A table, and the boot ids of the workers that it told of."""

    def __init__(self) -> None:
        self.lives: dict[str, str] = {}
        self.left = 0
        self.table = Registrations(self._registered, self._left)

    def _registered(self, registration: WorkerRegistration) -> None:
        self.lives[registration.worker] = registration.boot_id

    def _left(self, pool: str, worker: str) -> None:
        assert pool == "p"
        del self.lives[worker]
        self.left += 1


def test_a_worker_stays_while_its_load_comes_although_the_bucket_lost_its_entry() -> None:
    told = Told()
    told.table.note_entry(registration(), 0.0)
    for tenth in range(1, 200):
        told.table.receive_load(load(), tenth / 10)
        told.table.note_entry_gone("p", "w1", tenth / 10)
        told.table.find_departed(tenth / 10)
    assert told.lives == {"w1": "b1"}


def test_a_worker_that_announces_itself_needs_no_bucket() -> None:
    told = Told()
    told.table.receive_announcement(announcement(), 0.0)
    assert told.lives == {"w1": "b1"}
    told.table.note_entry_gone("p", "w1", 1.0)
    assert told.lives == {"w1": "b1"}


def test_a_worker_of_which_nothing_is_heard_is_gone() -> None:
    told = Told()
    told.table.receive_announcement(announcement(), 0.0)
    told.table.find_departed(TIMES.worker_gone_s)
    assert told.lives
    told.table.find_departed(LATER)
    assert not told.lives


def test_a_worker_that_leaves_is_gone_at_once() -> None:
    told = Told()
    told.table.receive_announcement(announcement(), 0.0)
    told.table.receive_announcement(announcement(leaving=True), 0.1)
    assert not told.lives
    told.table.receive_announcement(announcement(leaving=True), 0.2)
    assert told.left == 1


def test_an_agent_that_was_replaced_takes_no_worker_of_its_successor_along() -> None:
    told = Told()
    told.table.receive_announcement(announcement(agent="agent-1"), 0.0)
    told.table.receive_announcement(announcement(agent="agent-2"), 0.1)
    told.table.receive_announcement(announcement(agent="agent-1", leaving=True), 0.2)
    assert told.lives == {"w1": "b1"}


def test_an_old_entry_of_the_bucket_does_not_replace_what_the_agent_announced() -> None:
    told = Told()
    told.table.receive_announcement(announcement("b2"), 0.0)
    told.table.note_entry(registration("b1"), 0.1)
    assert told.lives == {"w1": "b2"}


def test_the_bucket_is_believed_again_when_an_agent_announces_no_more() -> None:
    told = Told()
    told.table.receive_announcement(announcement("b2"), 0.0)
    for second in range(1, 8):
        told.table.receive_load(load(), float(second))
        told.table.find_departed(float(second))
    told.table.note_entry(registration("b3"), LATER + 1)
    assert told.lives == {"w1": "b3"}


def test_an_entry_without_renewal_in_the_bucket_leaves_with_its_silent_worker() -> None:
    told = Told()
    told.table.note_entry(registration(), 0.0)
    told.table.receive_load(load(), 1.0)
    told.table.note_entry_gone("p", "w1", 0.9 + TIMES.worker_silent_s)
    assert told.lives
    told.table.note_entry_gone("p", "w1", 1.1 + TIMES.worker_silent_s)
    assert not told.lives
    told.table.note_entry_gone("p", "w1", 9.0)


def test_a_worker_that_reports_before_it_is_registered_is_known_to_be_missing() -> None:
    told = Told()
    told.table.receive_load(load(), 0.0)
    assert told.table.has_strangers
    told.table.find_departed(TIMES.worker_silent_s + 0.1)
    assert not told.table.has_strangers
    told.table.receive_load(load(), 2.0)
    told.table.receive_announcement(announcement(), 2.1)
    assert not told.table.has_strangers
    assert not told.table.is_empty


def test_a_registration_that_is_refused_is_not_remembered() -> None:
    def refuse(registration: WorkerRegistration) -> None:
        raise ValueError(registration.url)

    def never(pool: str, worker: str) -> None:
        pytest.fail(f"{worker} of {pool} was never there")

    table = Registrations(refuse, never)
    with pytest.raises(ValueError, match="http://w1"):
        table.receive_announcement(announcement(), 0.0)
    assert table.is_empty
    table.find_departed(LATER)


@given(st.lists(st.tuples(st.sampled_from(["stored", "unstored", "reported", "tick"]), st.floats(0.0, 1.9))))
def test_whatever_the_bucket_does_an_announced_worker_stays(steps: list[tuple[str, float]]) -> None:
    """`steps`: what happens, and how many seconds after the step before; the agent announces every 2 s."""
    told = Told()
    at = 0.0
    told.table.receive_announcement(announcement("b2"), at)
    for what, gap in steps:
        at += gap
        told.table.receive_announcement(announcement("b2"), at)
        match what:
            case "stored":
                told.table.note_entry(registration("b1"), at)
            case "unstored":
                told.table.note_entry_gone("p", "w1", at)
            case "reported":
                told.table.receive_load(load(), at)
            case _:
                told.table.find_departed(at)
    assert told.lives == {"w1": "b2"}
    assert told.left == 0
