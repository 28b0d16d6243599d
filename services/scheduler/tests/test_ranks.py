"""Data-parallel ranks of one engine are endpoints of their own, with a server in common."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.kv import KvChange
from pointsman_contracts.message import Blob, read_fields
from pointsman_contracts.subjects import ANY
from pointsman_contracts.verdicts import WorkerVerdicts
from pointsman_contracts.worker import WorkerRegistration
from pointsman_delay import DelayEstimator
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.rank_heeding import SAMPLES, RankHeeding
from pointsman_scheduler.outlier_actions import VerdictPublisher
from pointsman_scheduler.plugins.producers.rank_shares import RankShares
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_testing.scheduler_bench import LIFE, Bench

DISAGGREGATED = {
    "handler": "disaggregated",
    "profiles": {
        "decode": {"filters": ["healthy", {"use": "role", "role": "decode"}]},
        "prefill": {"filters": ["healthy", {"use": "role", "role": "prefill"}]},
    },
}


def join(bench: Bench, server: str, ranks: int = 2, **facts: object) -> None:
    for rank in range(ranks):
        bench.join(f"{server}-rank-{rank}", url=f"http://{server}:8000", server=server, rank=rank, ranks=ranks, **facts)


@cache
def laid_out() -> tuple[Sequence[Worker], DelayEstimator]:
    """Four ranks and a worker that is none; and a model that has learnt how long passes take."""
    bench = Bench({})
    join(bench, "w", 4)
    bench.join("alone")
    bench.decide()
    estimator = DelayEstimator(8192, 16.0)
    for tokens in range(200):
        passed = np.array([1.0, tokens % 8, (tokens % 8) ** 2, 0.0, 0.0, 0.0, 0.0])
        estimator.model.learn_pass(passed, 20.0 + 15.0 * (tokens % 8), 5.0)
    assert estimator.model.is_trusted
    return bench.pool.fleet.workers, estimator


def test_each_endpoint_of_a_decision_names_its_rank() -> None:
    bench = Bench({})
    join(bench, "w")
    endpoints = [each.endpoint for each in bench.decide().endpoints]
    assert {(each.worker, each.url, each.rank) for each in endpoints} == {
        ("w-rank-0", "http://w:8000", 0),
        ("w-rank-1", "http://w:8000", 1),
    }


def test_ranks_share_requests_evenly_and_the_load_of_one_moves_them_to_the_other() -> None:
    bench = Bench({})
    join(bench, "w", 4)
    assert Counter(bench.chosen(seed=seed) for seed in range(40)) == {f"w-rank-{rank}": 10 for rank in range(4)}
    bench = Bench({})
    join(bench, "w")
    bench.hear("w-rank-0", running=200, waiting=50)
    assert bench.chosen() == "w-rank-1"


def test_a_prompt_goes_to_the_rank_that_holds_it_and_to_no_other_of_its_engine() -> None:
    bench = Bench({})
    join(bench, "w", 8)
    first = bench.serve(bench.prompt(family=1, blocks=20))
    for seed in range(5):
        assert bench.serve(bench.prompt(family=1, blocks=20), seed) == first


@settings(max_examples=25)
@given(sent=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100_000)), min_size=1, max_size=30))
def test_work_costs_more_at_ranks_that_computed_more_than_their_engines_mean_and_nothing_more_in_sum(
    sent: list[tuple[int, int]],
) -> None:
    """One worker of five is no rank. `sent`: to which worker, and tokens to compute."""
    workers, estimator = laid_out()
    shares = RankShares()
    shares.set_workers(workers)
    computed = [0.0] * 5
    for at, (row, tokens) in enumerate(sent):
        shares.note_prompt(workers[row].life, tokens, estimator, float(at))
        computed = [each * math.exp(-1.0 / 30_000.0) for each in computed]
        computed[row] += tokens
    more = shares.add_costs(np.zeros(5), np.full(5, 1000.0), estimator, float(len(sent)))
    ranks = [row for row, worker in enumerate(workers) if worker.name != "alone"]
    mean = sum(computed[row] for row in ranks) / 4
    assert more[[row for row in range(5) if row not in ranks]] == pytest.approx(0.0, abs=1e-9)
    assert more.sum() == pytest.approx(0.0, abs=1e-6 * max(1.0, np.abs(more).max()))
    for row in ranks:
        if abs(computed[row] - mean) > 1.0:
            assert np.sign(more[row]) == np.sign(computed[row] - mean)
    assert shares.add_costs(np.zeros(5), np.zeros(5), estimator, 1.0) == pytest.approx(0.0)


def test_an_engine_of_one_rank_costs_as_before() -> None:
    bench = Bench({})
    bench.join("a", "b")
    bench.decide()
    shares = RankShares()
    shares.set_workers(bench.pool.fleet.workers)
    assert not shares.has_ranks


def test_a_server_that_refuses_a_connection_takes_all_of_its_ranks() -> None:
    bench = Bench({})
    join(bench, "a", 4)
    join(bench, "b", 4)
    request = bench.request()
    worker = bench.chosen(request)
    bench.fail(request.request_id, worker)
    server = worker.partition("-")[0]
    assert {each.name for each in bench.pool.fleet.ejected} == {f"{server}-rank-{rank}" for rank in range(4)}
    other = "b" if server == "a" else "a"
    assert {bench.chosen(seed=seed).partition("-")[0] for seed in range(20)} == {other}


@pytest.mark.parametrize("outcome", ["failed", "timeout", "cut_off"])
def test_a_rank_that_fails_its_requests_is_judged_alone(outcome: str) -> None:
    bench = Bench({})
    join(bench, "w", 4)
    for _ in range(20):
        request = bench.request()
        if bench.place(request, "w-rank-2"):
            bench.fail(request.request_id, "w-rank-2", outcome=outcome, status=500 if outcome == "failed" else None)
        for rank in (0, 1, 3):
            bench.serve(bench.request(workers=(f"w-rank-{rank}",)))
    assert {each.name for each in bench.pool.fleet.ejected} == {"w-rank-2"}


def test_the_name_of_an_engine_stands_for_its_ranks_where_a_request_names_its_worker() -> None:
    bench = Bench({})
    join(bench, "a")
    join(bench, "b")
    named = {bench.chosen(bench.request(workers=("a",)), seed) for seed in range(20)}
    assert named == {"a-rank-0", "a-rank-1"}
    assert bench.chosen(bench.request(workers=("b-rank-1",))) == "b-rank-1"


def test_the_prompts_leg_names_the_rank_that_computes_it() -> None:
    bench = Bench(DISAGGREGATED)
    join(bench, "p", 4, role="prefill")
    join(bench, "d", role="decode")
    outcome = bench.decide(bench.prompt(family=1, blocks=20))
    leg = outcome.selection.prefill
    assert leg is not None
    assert (leg.worker, leg.url, leg.ranks) == (f"p-rank-{leg.rank}", "http://p:8000", 4)
    written = {each.name: each.value for each in outcome.headers}
    assert written["x-prefiller-rank"] == f"{leg.rank}/4"
    assert outcome.endpoints[0].endpoint.rank is not None


def test_an_engine_that_is_one_worker_registers_as_before() -> None:
    """So that old agents and new schedulers understand each other, and the reverse."""
    own = {"worker": "w", "pool": "llama", "url": "http://w:8000", "boot_id": LIFE, "agent": "a", "version": "1"}
    former = read_fields(WorkerRegistration, {**own, "registered_ms": 0, "data_parallel_size": 4})
    assert (former.server, former.rank, former.ranks) == (None, None, None)
    written = former.encode()
    for name in (b"server", b"rank", b"ranks", b"rank_field"):
        assert b'"' + name + b'"' not in written


def heeding_of(sent: list[int], shown: list[int]) -> dict[str, str]:
    """The verdicts where so many requests were sent to each rank, and its reports show so many."""
    bench = Bench({})
    join(bench, "w", len(sent))
    for rank, count in enumerate(sent):
        for _ in range(count):
            assert bench.place(bench.request(), f"w-rank-{rank}")
    bench.now += 1.0
    for rank, count in enumerate(shown):
        bench.hear(f"w-rank-{rank}", running=count)
    heeding = RankHeeding()
    for _ in range(SAMPLES):
        heeding.compare(bench.pool, bench.now)
    judged = [judgement for worker in bench.pool.fleet.present if (judgement := heeding.judge(worker)) is not None]
    return {each.worker.name: each.reason for each in judged if each.verdict == "unheeded"}


def test_an_engine_that_runs_requests_at_another_rank_than_they_name_is_found() -> None:
    found = heeding_of([3, 0], [1, 2])
    assert set(found) == {"w-rank-0", "w-rank-1"}
    assert found["w-rank-0"] == (
        "requests that name one rank run at another, by 20 of 20 signs: 1 at w-rank-0, where 3 were sent, "
        "and 2 at w-rank-1, where 0 were sent"
    )


async def test_the_ranks_of_such_an_engine_are_published_as_unheeded_until_they_agree(buses: Buses) -> None:
    bench, told = Bench({}), list[WorkerVerdicts]()
    join(bench, "w")
    request = bench.request()
    assert bench.place(request, "w-rank-0")
    bench.now += 1.0
    bench.hear("w-rank-0", running=0)
    bench.hear("w-rank-1", running=1)
    buses.make("metrics-collector").bus.listen(WorkerVerdicts, told.append, ANY)
    publisher = VerdictPublisher(buses.make("scheduler").bus)
    await buses.meet()
    for _ in range(SAMPLES):
        publisher.publish_verdicts(bench.pool, bench.now)
    await eventually(lambda: bool(told))
    assert {each.worker: each.verdict for each in told[-1].verdicts} == {"w-rank-0": "unheeded", "w-rank-1": "unheeded"}
    bench.hear("w-rank-0", running=1)
    bench.hear("w-rank-1", running=0)
    told.clear()
    for _ in range(SAMPLES):
        publisher.publish_verdicts(bench.pool, bench.now)
    await eventually(lambda: bool(told) and told[-1].verdicts == ())


COUNTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=4)


@given(COUNTS)
def test_requests_from_elsewhere_are_no_sign_of_a_rank_that_is_ignored(ranks: list[tuple[int, int]]) -> None:
    assert heeding_of([sent for sent, _ in ranks], [sent + others for sent, others in ranks]) == {}


@given(COUNTS)
def test_ranks_that_hide_requests_do_not_seem_to_ignore_what_requests_name(ranks: list[tuple[int, int]]) -> None:
    assert heeding_of([sent for sent, _ in ranks], [max(0, sent - hidden) for sent, hidden in ranks]) == {}


@given(st.integers(2, 4), st.data())
def test_requests_that_all_run_at_other_ranks_are_noticed(ranks: int, data: st.DataObject) -> None:
    sent = data.draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks).filter(any))
    shown = data.draw(st.permutations(sent))
    assert bool(heeding_of(sent, list(shown))) == (list(shown) != sent)


@pytest.mark.parametrize(("reporter", "found"), [("w-rank-0", False), ("w-rank-1", True), (None, False)])
def test_a_prompt_that_another_rank_reports_shows_that_the_rank_is_ignored(reporter: str | None, found: bool) -> None:
    bench = Bench({})
    join(bench, "w")
    heeding = RankHeeding()
    for worker in bench.pool.fleet.present:
        bench.pool.hear_kv(worker.name, LIFE, Told(), complete=True, now=bench.now)
    for family in range(SAMPLES):
        request = bench.prompt(family=family, blocks=4, blocks_precise=True, workers=("w-rank-0",))
        assert bench.chosen(request) == "w-rank-0"
        bench.pool.books.started(request.key, "w-rank-0", 5.0, bench.now)
        heeding.compare(bench.pool, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True)
        if reporter is not None:
            stored = KvChange(op="stored", blocks=Blob(request.blocks.tobytes()))
            bench.pool.hear_kv(reporter, LIFE, Told(changes=(stored,)), complete=True, now=bench.now)
        bench.now += 1.0
        heeding.compare(bench.pool, bench.now)
    bench.now += 10.0
    heeding.compare(bench.pool, bench.now)
    verdicts = {worker.name: heeding.judge(worker) for worker in bench.pool.fleet.present}
    assert all((verdict is not None) == found for verdict in verdicts.values()), verdicts
