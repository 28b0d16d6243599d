"""A dry run chooses as a real request would, and leaves no trace: not in the books, nor in anything that learns."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_flight.salt import Salt
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.flight.freezing import freeze
from pointsman_scheduler.flight.packing import Packer
from pointsman_testing.recorded_traffic import POLICIES, RandomTraffic, RecordedBench, replayed
from pointsman_testing.scheduler_bench import Bench

ROUND_ROBIN = {"profiles": {"default": {"scorers": [{"use": "queue"}], "picker": "round-robin"}}}
EVERY = (*POLICIES, ROUND_ROBIN)


def state_of(bench: Bench) -> bytes:
    """Everything that a snapshot of the pool and its policy has."""
    frozen = freeze(bench.pool, {0: bench.policy})
    for promise in frozen.promises:
        promise.keep()
    return b"".join(Packer(Salt(b"test"), hash_ids=False, headers=frozenset()).pack_parts(frozen))


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), steps=st.integers(1, 60), family=st.integers(0, 5), blocks=st.integers(0, 40))
def test_dry_runs_leave_the_state_of_a_pool_as_it_is(
    policy: dict[str, object], seed: int, steps: int, family: int, blocks: int
) -> None:
    bench = Bench(policy)
    RandomTraffic(bench, seed, revisions=False).run(steps)
    # Time that passes moves figures on, whether it is asked for a dry run or for a load report.
    bench.pool.foresee(bench.prompt(family, 1, dry_run=True), bench.now, 1, bench.policy)
    before = state_of(bench)
    for session in (None, "a-session"):
        request = bench.prompt(family, blocks, 3, session=session, max_output_tokens=50, dry_run=True)
        bench.pool.foresee(request, bench.now, seed, bench.policy)
    assert state_of(bench) == before


@pytest.mark.parametrize("policy", EVERY)
def test_a_log_is_replayed_bit_for_bit_whether_dry_runs_were_between_or_not(
    policy: dict[str, object], tmp_path: Path
) -> None:
    bench = RecordedBench(tmp_path, policy)
    traffic = RandomTraffic(bench, 7, revisions=False)
    for number in range(60):
        traffic.run(10)
        request = bench.prompt(number % 4, 12, 2, dry_run=True)
        bench.pool.foresee(request, bench.now, number, bench.policy)
    bench.end()
    decisions, differences = replayed(tmp_path)
    assert decisions > 50
    assert differences == []


@pytest.mark.parametrize("policy", EVERY)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), steps=st.integers(1, 60), blocks=st.integers(0, 40))
@example(seed=43622, steps=59, blocks=0)  # the loading of an adapter is over when the request comes
def test_a_dry_run_names_the_engine_that_the_same_request_then_gets(
    policy: dict[str, object], seed: int, steps: int, blocks: int
) -> None:
    bench = Bench(policy)
    RandomTraffic(bench, seed, revisions=False).run(steps)
    asked = bench.prompt(1, blocks, dry_run=True)
    foreseen, _ = bench.pool.foresee(asked, bench.now, seed, bench.policy)
    asked.facts = replace(asked.facts, dry_run=False)
    outcome = bench.pool.decide(asked, bench.now, seed, bench.policy)
    if isinstance(outcome, Scheduled) and isinstance(foreseen, Scheduled) and not outcome.trial:
        assert [worker.name for worker in foreseen.endpoints] == [worker.name for worker in outcome.endpoints]
        assert foreseen.cached_tokens == outcome.cached_tokens
        assert foreseen.holds == []
