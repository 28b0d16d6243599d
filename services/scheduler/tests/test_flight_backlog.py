"""Records that wait for the disk: the ones kept, the drops counted, the block hashes of each record."""

import msgspec
import numpy as np
import pytest

from pointsman_flight.records import PolicyDefined, Record, Swept, WorkerRemoved
from pointsman_scheduler.flight.backlog import AT_ONCE, MANY_BYTES, TOO_SLOW, Backlog, Drained
from pointsman_scheduler.flight.outcomes import recorded
from pointsman_testing.scheduler_bench import Bench

GOOD = Swept(1.0, more=False)
BAD = WorkerRemoved(1.0, "a lone surrogate: \ud800")


def waiting(most: int = 2**20) -> Backlog:
    backlog = Backlog(most)
    backlog.open()
    return backlog


def kept(drained: Drained) -> tuple[int, bytes]:
    """How many records, and the block hashes of them."""
    return len(recorded_in(drained)), b"".join(each for part in drained.encoded.parts for each in part.hashes)


def recorded_in(drained: Drained) -> list[object]:
    """The records."""
    arrays = [array for part in drained.encoded.parts for array in part.arrays]
    return [record for array in arrays for record in msgspec.msgpack.decode(array)]


def as_read(*records: Record) -> list[object]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(records))


def test_records_that_were_left_to_the_next_decision_are_kept_however_many_they_are() -> None:
    backlog = waiting()
    backlog.inputs.extend([GOOD] * 2**16)
    assert recorded_in(backlog.take_records()) == 2**16 * as_read(GOOD)


@pytest.mark.parametrize("number", [1, 15, 16, AT_ONCE, 10 * AT_ONCE + 3])
def test_any_number_of_records_is_kept(number: int) -> None:
    backlog = waiting()
    for _ in range(number):
        backlog.put(GOOD)
    drained = backlog.take_records()
    assert (drained.encoded.inputs, drained.dropped) == (number, 0)
    assert recorded_in(drained) == number * as_read(GOOD)


def test_a_record_with_many_block_hashes_waits_for_no_others() -> None:
    backlog = waiting()
    backlog.hashes.extend(bytes(MANY_BYTES - 8))
    backlog.put(GOOD)
    assert len(backlog.inputs) == 1
    backlog.hashes.extend(bytes(8))
    backlog.put(GOOD)
    assert not backlog.inputs
    assert kept(backlog.take_records()) == (2, bytes(MANY_BYTES))


@pytest.mark.parametrize("before", [0, 1, AT_ONCE - 1])
def test_records_before_one_that_cannot_be_encoded_are_kept_and_those_after_it_counted(before: int) -> None:
    backlog = waiting()
    for record in [*[GOOD] * before, BAD, *[GOOD] * 50]:
        backlog.put(record)
    drained = backlog.take_records()
    assert kept(drained)[0] == drained.encoded.inputs == before
    assert drained.dropped == 51
    assert drained.problem.startswith("an input can't be recorded: ")


def test_the_next_log_has_no_block_hashes_of_an_input_that_was_refused() -> None:
    backlog = waiting()
    backlog.hashes.extend(bytes(16))
    backlog.refuse_input(ValueError("no scores"))
    backlog.open()
    backlog.hashes.extend(bytes(8))
    backlog.put(GOOD)
    assert kept(backlog.take_records()) == (1, bytes(8))


def test_nothing_is_kept_beyond_the_limit_nor_after_it() -> None:
    backlog = waiting(most=10)
    for _ in range(3 * AT_ONCE):
        backlog.hashes.extend(bytes(8))
        backlog.put(GOOD)
    backlog.insert_record(PolicyDefined(1, "default", "hash", "{}"))
    drained = backlog.take_records()
    assert (*kept(drained), drained.dropped, drained.problem) == (AT_ONCE, AT_ONCE * bytes(8), 2 * AT_ONCE, TOO_SLOW)


def test_a_definition_is_no_input_and_stands_before_what_comes_later() -> None:
    backlog = waiting()
    records: list[Record] = [GOOD, PolicyDefined(1, "default", "hash", "{}"), BAD]
    backlog.put(records[0])
    backlog.insert_record(records[1])
    backlog.put(records[2])
    drained = backlog.take_records()
    assert recorded_in(drained) == as_read(*records[:2])
    assert (drained.encoded.inputs, drained.dropped) == (1, 1)


def test_scores_that_are_numbers_of_numpy_are_recorded_as_any_others() -> None:
    bench = Bench()
    bench.join("engine-1")
    outcome = bench.decide()
    then = recorded(outcome)
    [run] = outcome.runs
    assert isinstance(run.scores, list)
    run.scores = [list(np.array(column)) for column in run.scores]
    assert recorded(outcome) == then
