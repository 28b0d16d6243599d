"""Which profiles run for a request, and what their results mean together."""

import json
from collections import Counter

import numpy as np
import pytest

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.response import AttemptFailed
from pointsman_scheduler.plugins.deciders.prefill import Pays
from pointsman_testing.scheduler_bench import Bench, explained

ROLES: dict[str, object] = {
    "decode": {"filters": ["healthy", {"use": "role", "role": "decode"}], "scorers": ["queue"]},
    "prefill": {"filters": ["healthy", {"use": "role", "role": "prefill"}], "scorers": ["prefix-cache"]},
}
PREFIX_DECIDER: dict[str, object] = {"use": "prefix", "uncached_tokens": 512}


def split(**handler: object) -> Bench:
    """Two workers for prompts, two for answers."""
    bench = Bench(
        {
            "handler": {"use": "disaggregated", **handler},
            "deciders": [PREFIX_DECIDER, "multimodal", "pays"],
            "profiles": ROLES,
        }
    )
    bench.join("p1", "p2", role="prefill")
    bench.join("d1", "d2", role="decode")
    return bench


def headers(edits: list[HeaderEdit]) -> dict[str, str | None]:
    return {edit.name: edit.value for edit in edits}


@pytest.mark.requirement("S2-32", "S2-34")
def test_a_long_prompt_is_computed_by_a_prefill_worker_and_answered_by_a_decode_worker() -> None:
    bench = split(prefill_when="prefix")
    request = bench.prompt(family=1, blocks=20)
    outcome = bench.decide(request)
    assert outcome.endpoints[0].name.startswith("d")
    prefiller = headers(outcome.headers)["x-prefiller-host-port"]
    assert prefiller is not None
    assert prefiller.split(",")[0] in ("p1:8000", "p2:8000")
    assert [(hold.change.leg, hold.worker.name[0], hold.change.uncached_tokens) for hold in outcome.holds] == [
        ("", "d", 0),
        ("prefill", "p", 1280),
    ]


def test_scores_of_every_candidate_can_be_told() -> None:
    bench = Bench(
        {"scorers": ["queue"], "filters": ["healthy"], "pre-request": ["destination-header", "endpoint-scores"]}
    )
    bench.join("a", "b", "c")
    bench.hear("b", sequence=2, waiting=3)
    outcome = bench.decide()
    told = json.loads(headers(outcome.headers)["x-gateway-destination-endpoint-scores"] or "")
    (run,) = outcome.runs
    assert run.scores is not None
    assert told == {
        f"{name}:8000": pytest.approx(float(score)) for name, score in zip("abc", run.scores[-1], strict=True)
    }
    assert told["b:8000"] < told["a:8000"]


def test_a_short_prompt_stays_with_the_endpoint_that_answers() -> None:
    bench = split(prefill_when="prefix")
    outcome = bench.decide(bench.prompt(family=1, blocks=4))
    assert [run.profile for run in outcome.runs] == ["decode"]
    assert headers(outcome.headers)["x-prefiller-host-port"] is None
    assert [hold.change.leg for hold in outcome.holds] == [""]


@pytest.mark.parametrize(
    ("uncached", "whole", "elsewhere"), [(99, 100, True), (100, 100, True), (101, 1, False), (1, 101, False)]
)
def test_a_prompt_of_just_as_many_tokens_as_are_asked_for_is_long_enough(
    uncached: int, whole: int, elsewhere: bool
) -> None:
    prefix = {"use": "prefix", "uncached_tokens": uncached, "prompt_tokens": whole}
    bench = Bench(
        {"handler": {"use": "disaggregated", "prefill_when": "prefix"}, "deciders": [prefix], "profiles": ROLES}
    )
    bench.join("p1", role="prefill")
    bench.join("d1", role="decode")
    assert (len(bench.decide(bench.request(prompt_tokens=100)).runs) == 2) is elsewhere


@pytest.mark.requirement("S1-49", "S2-29", "S2-31", "S2-43")
def test_decode_first_asks_what_the_endpoint_that_answers_holds() -> None:
    bench = split(prefill_when="prefix")
    for name in ("d1", "d2"):
        request = bench.prompt(family=1, blocks=20)
        assert bench.place(request, name)
        bench.pool.books.started(request.key, name, 1.0, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True)
    assert [run.profile for run in bench.decide(bench.prompt(family=1, blocks=20)).runs] == ["decode"]
    prefill_first = split(prefill_when="prefix", first="prefill")
    runs = prefill_first.decide(prefill_first.prompt(family=1, blocks=20)).runs
    assert [run.profile for run in runs] == ["prefill", "decode"]


def test_the_edge_gets_the_leg_that_it_sends_itself() -> None:
    bench = split()
    bench.join("p3", role="prefill", labels={"bootstrap_port": "8999"})
    outcome = bench.decide(bench.prompt(family=1, blocks=20))
    leg = outcome.selection.prefill
    assert leg is not None
    assert (leg.worker, leg.engine) == (outcome.holds[1].worker.name, "vllm")
    assert leg.url == f"http://{leg.worker}:8000"
    assert leg.bootstrap_port == (8999 if leg.worker == "p3" else None)


def test_the_delay_model_decides_where_a_prompt_is_computed_and_the_decision_says_so() -> None:
    bench = split(prefill_when="pays")
    assert bench.decide(bench.request(prompt_tokens=8000)).selection.forecast is None  # not trusted yet
    model = bench.policy.forecast
    assert model is not None
    passes, chance = model.best.model, np.random.default_rng(1)
    for _ in range(200):
        tokens, batch = chance.uniform(0.0, 8.0), float(chance.integers(1, 50))
        passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, batch * 0.01])
        passes.learn_pass(passed, float(np.array([16.5, 15.2, 0.42, 0.0, 5.7, 0.1, 50.0]) @ passed), 5.0)
    assert passes.is_trusted
    alone = bench.decide(bench.request(prompt_tokens=8000))
    forecast = alone.selection.forecast
    assert forecast is not None
    assert forecast.worker in ("p1", "p2")
    assert (forecast.pays, alone.selection.legs, [hold.change.leg for hold in alone.holds]) == (False, {}, [""])
    assert headers(alone.headers)["x-prefiller-host-port"] is None
    for number in range(60):
        request = bench.request(prompt_tokens=600)
        assert bench.place(request, f"d{number % 2 + 1}")
        bench.pool.books.started(request.key, f"d{number % 2 + 1}", 1.0, bench.now)
    apart = bench.decide(bench.request(prompt_tokens=8000))
    forecast = apart.selection.forecast
    assert forecast is not None
    assert (forecast.pays, [hold.change.leg for hold in apart.holds]) == (True, ["", "prefill"])
    assert (headers(apart.headers)["x-prefiller-host-port"] or "").startswith(f"{forecast.worker}:8000")


def test_pauses_of_running_answers_count_more_once_their_share_is_reached() -> None:
    bench = split(prefill_when="pays")
    decider = bench.policy.handler.referred()[0]
    assert isinstance(decider, Pays)
    worker = bench.pool.fleet.find("d1")
    assert worker is not None
    assert decider.pause_weight(worker.life, 10.0, bench.now) == 1.0
    for _ in range(20):  # the first one finds the engine idle
        bench.place(bench.request(prompt_tokens=8000), "d1")
    assert decider.pause_weight(worker.life, 10.0, bench.now) == decider.params.pause_weight
    assert decider.pause_weight(worker.life, 10.0, bench.now + 120.0) == 1.0


def test_a_sidecar_and_engines_of_two_kinds_leave_the_legs_to_the_header() -> None:
    bench = split(prefill_by="sidecar")
    outcome = bench.decide(bench.prompt(family=1, blocks=20))
    assert outcome.selection.prefill is None
    assert headers(outcome.headers)["x-prefiller-host-port"]
    mixed = Bench({"handler": "disaggregated", "profiles": ROLES})
    mixed.join("p1", role="prefill", engine="sglang")
    mixed.join("d1", role="decode")
    assert mixed.decide(mixed.prompt(family=1, blocks=20)).selection.prefill is None


def test_a_failed_leg_takes_the_prompt_back_to_the_endpoint_that_answers() -> None:
    bench = split()
    request = bench.prompt(family=1, blocks=20)
    outcome = bench.decide(request)
    decoder, prefiller = outcome.endpoints[0], outcome.holds[1].worker
    assert (decoder.prefill_tokens, prefiller.prefill_tokens) == (0, 1280)
    bench.pool.books.failed(
        AttemptFailed(
            request_id=request.request_id, source=request.edge, sequence=1, at_ms=0, pool="pool",
            worker=prefiller.name, outcome="refused", leg="prefill",
        ),
        bench.now,
    )  # fmt: skip
    assert (decoder.prefill_tokens, prefiller.prefill_tokens, prefiller.open) == (1280, 0, 0)
    again = bench.decide(bench.prompt(family=1, blocks=20))
    assert again.holds[1].change.uncached_tokens == 1280


def test_an_endpoint_that_waits_for_its_prompt_is_given_the_time_of_both_legs() -> None:
    alone, split_up = split(prefill_when="prefix", first="decode"), split()
    short = alone.decide(alone.request(prompt_tokens=1)).holds[0]
    long = split_up.decide(split_up.request(prompt_tokens=20_000)).holds[0]
    assert long.change.leg == ""
    assert long.change.uncached_tokens == 0
    assert long.predicted_ms > 10 * short.predicted_ms


def test_without_a_decider_every_prompt_is_computed_elsewhere() -> None:
    bench = split()
    assert list(bench.decide(bench.request(prompt_tokens=1)).selection.legs) == ["prefill"]


@pytest.mark.requirement("S2-45")
def test_when_no_prefill_worker_is_left_the_endpoint_that_answers_does_it_all_and_says_so() -> None:
    bench = split(prefill_when="prefix")
    for name in ("p1", "p2"):
        bench.hear(name, state="unreachable")
    outcome = bench.decide(bench.prompt(family=1, blocks=20))
    assert [(run.profile, run.error) for run in outcome.runs] == [
        ("decode", None),
        ("prefill", "role left no candidate"),
    ]
    assert outcome.reasons == ["no worker for prefill: the endpoint that answers does it"]
    assert outcome.holds[0].change.uncached_tokens == 1280


def test_without_a_decode_worker_there_is_no_answer() -> None:
    bench = split(prefill_when="prefix")
    for name in ("d1", "d2"):
        bench.hear(name, state="unreachable")
    assert bench.refused(bench.prompt(family=1, blocks=20)).refusal.status == 503


def test_a_worker_that_does_both_gets_no_header_to_fetch_from_itself() -> None:
    bench = Bench({"handler": "disaggregated", "profiles": ROLES})
    bench.join("w", role="both")
    outcome = bench.decide(bench.prompt(family=1, blocks=20))
    assert outcome.selection.legs == {}
    assert headers(outcome.headers)["x-prefiller-host-port"] is None


def test_media_are_encoded_elsewhere_when_the_decider_says_so() -> None:
    bench = Bench(
        {
            "handler": {
                "use": "disaggregated",
                "encode": "encode",
                "encode_when": "multimodal",
                "prefill_when": "prefix",
            },
            "deciders": [PREFIX_DECIDER, "multimodal"],
            "profiles": {**ROLES, "encode": {"filters": [{"use": "role", "role": "encode"}]}},
        }
    )
    bench.join("d", role="decode")
    bench.join("e", role="encode")
    seen = bench.decide(bench.request(features=("vision",)))
    assert headers(seen.headers)["x-encoder-hosts-ports"] == "e:8000"
    read = bench.decide(bench.request())
    assert headers(read.headers)["x-encoder-hosts-ports"] is None


def test_the_first_byte_ends_the_work_of_the_prefill_worker() -> None:
    bench = split()
    request = bench.prompt(family=1, blocks=20)
    outcome = bench.decide(request)
    prefiller = outcome.holds[1].worker
    assert (prefiller.open, prefiller.prefill_tokens) == (1, 1280)
    bench.pool.books.started(request.key, outcome.endpoints[0].name, 5.0, bench.now)
    assert (prefiller.open, prefiller.prefill_tokens) == (0, 0)
    bench.pool.books.completed(request.key, bench.now, ok=True)
    again = bench.decide(bench.prompt(family=1, blocks=20))
    assert again.holds[1].worker is prefiller
    assert again.holds[1].change.uncached_tokens == 0


@pytest.mark.parametrize("place", [0, 1], ids=["by the first endpoint", "by a fallback"])
def test_an_answer_that_was_not_streamed_ends_the_work_of_all_its_workers(place: int) -> None:
    bench = split()
    request = bench.prompt(family=1, blocks=20, stream=False)
    outcome = bench.decide(request)
    worker = outcome.endpoints[place].name
    bench.pool.books.completed(request.key, bench.now, ok=True, output_tokens=5, worker=worker)
    assert not len(bench.pool.books)
    assert bench.pool.books.ended(request.key)
    assert {worker.open for worker in bench.pool.fleet} == {0}


@pytest.mark.parametrize("use", ["filters", "scorers"])
def test_a_session_stays_with_the_worker_that_prefills_it(use: str) -> None:
    usual: dict[str, dict[str, list[object]]] = {
        "prefill": {"filters": [{"use": "role", "role": "prefill"}], "scorers": ["active-requests"]},
        "decode": {"filters": [{"use": "role", "role": "decode"}], "scorers": ["active-requests"]},
    }
    for profile in usual.values():
        profile[use] = [*profile[use], "session"] if use == "filters" else ["session"]
    bench = Bench({"handler": "disaggregated", "deciders": ["always"], "profiles": usual})
    bench.join("p1", "p2", "p3", role="prefill")
    bench.join("d1", "d2", "d3", role="decode")
    pairs: set[tuple[str, ...]] = set()
    for seed in range(8):
        outcome = bench.decide(bench.prompt(family=seed, blocks=20, session="s"), seed=seed)
        pairs.add(tuple(hold.worker.name for hold in outcome.holds))
    assert len(pairs) == 1
    assert {name[0] for name in next(iter(pairs))} == {"p", "d"}


def test_a_header_names_the_profile_and_the_error_for_a_wrong_name_lists_the_right_ones() -> None:
    bench = Bench({"handler": {"use": "header-named", "default": "decode"}, "profiles": ROLES})
    bench.join("p", role="prefill")
    bench.join("d", role="decode")
    assert bench.chosen(bench.request(headers={"epp-profile": " prefill "})) == "p"
    for default in ({}, {"epp-profile": ""}, {"epp-profile": "  "}):
        assert bench.chosen(bench.request(headers=default)) == "d"
    refusal = bench.refused(bench.request(headers={"epp-profile": "prefil"})).refusal
    assert (refusal.status, refusal.code) == (400, "unknown_scheduling_profile")
    assert "did you mean 'prefill'?" in refusal.message


@pytest.mark.requirement("S2-40")
def test_a_shadow_is_recorded_and_changes_nothing() -> None:
    alone: dict[str, object] = {"filters": ["healthy"], "scorers": ["queue"], "picker": "weighted-random"}
    plain = Bench(alone)
    shadowed = Bench({"handler": "shadow", "profiles": {"default": alone, "tried": {"picker": "random"}}})
    for bench in (plain, shadowed):
        bench.join(*[f"w{number}" for number in range(10)])
    for seed in range(100):
        one, two = plain.decide(seed=seed), shadowed.decide(seed=seed)
        assert [worker.name for worker in one.endpoints] == [worker.name for worker in two.endpoints]
        assert [hold.worker.name for hold in two.holds] == [hold.worker.name for hold in one.holds]
    assert [run.profile for run in explained(shadowed.decide())[0]] == ["default", "tried"]


def test_a_shadow_that_finds_no_worker_is_recorded_and_does_no_harm() -> None:
    bench = Bench(
        {
            "handler": "shadow",
            "profiles": {"default": {}, "tried": {"filters": [{"use": "role", "role": "encode"}]}},
        }
    )
    bench.join("w")
    runs = explained(bench.decide())[0]
    assert runs[1].chosen == ()
    assert runs[1].error == "role left no candidate"
    assert runs[1].candidates.filtered == {"w": "role: its role is 'both', not encode"}


def test_prompts_with_the_same_beginning_go_to_the_same_rank_until_it_is_too_full() -> None:
    bench = Bench({"handler": {"use": "data-parallel", "imbalance": 3}})
    bench.join("w", data_parallel_size=4)
    ranks: list[int | None] = []
    for _ in range(5):
        outcome = bench.decide(bench.prompt(family=1, blocks=4))
        ranks.append(outcome.holds[0].change.rank)
        assert headers(outcome.headers)["x-data-parallel-rank"] == str(outcome.holds[0].change.rank)
    assert len(set(ranks[:4])) == 1
    assert ranks[4] != ranks[0]


def test_short_prompts_go_to_the_emptiest_rank_and_every_scheduler_counts() -> None:
    one, two = Bench({"handler": "data-parallel"}), Bench({"handler": "data-parallel"}, "scheduler-2")
    for bench in (one, two):
        bench.join("w", data_parallel_size=4)
    for _ in range(4):
        outcome = one.decide()
        assert two.pool.books.apply(outcome.holds[0].change, "scheduler-1", two.now)
    assert Counter(hold.change.rank for hold in two.decide().holds) == {0: 1}
    request = one.request()
    rank = one.decide(request).holds[0].change.rank
    one.pool.books.completed(request.key, one.now, ok=True)
    assert one.decide().holds[0].change.rank == rank


def test_an_engine_with_one_rank_is_left_to_itself() -> None:
    bench = Bench({"handler": "data-parallel"})
    bench.join("w")
    outcome = bench.decide()
    assert outcome.holds[0].change.rank is None
    assert headers(outcome.headers)["x-data-parallel-rank"] is None


@pytest.mark.requirement("S2-9", "S2-34", "S2-35")
@pytest.mark.parametrize("endpoints", [1, 3])
def test_the_destination_names_the_choice_and_its_fallbacks(endpoints: int) -> None:
    bench = Bench({"scorers": ["queue"], "picker": {"use": "max-score", "endpoints": endpoints}})
    for number, host in enumerate(("10.0.0.1", "[fd00::2]", "10.0.0.3")):
        bench.join(f"w{number}", url=f"http://{host}:800{number}")
        bench.hear(f"w{number}", waiting=number)
    expected = ["10.0.0.1:8000", "[fd00::2]:8001", "10.0.0.3:8002"][:endpoints]
    assert headers(bench.decide().headers) == {"x-gateway-destination-endpoint": ",".join(expected)}
