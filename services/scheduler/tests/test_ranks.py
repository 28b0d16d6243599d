"""Data-parallel ranks of one engine are endpoints of their own, with a server in common."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.kv import KvChange
from pointsman_contracts.message import Blob, read_fields
from pointsman_contracts.subjects import ANY
from pointsman_contracts.verdicts import WorkerVerdicts
from pointsman_contracts.worker import WorkerRegistration
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.rank_heeding import SAMPLES, RankHeeding
from pointsman_scheduler.outlier_actions import VerdictPublisher
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
