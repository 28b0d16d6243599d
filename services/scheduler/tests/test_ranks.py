"""Data-parallel ranks of one engine are endpoints of their own, with a server in common."""

from collections import Counter

import pytest

from pointsman_contracts.message import read_fields
from pointsman_contracts.worker import WorkerRegistration
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
