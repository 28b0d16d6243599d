"""The twin finds the pass times of engines in a record, says whether to trust them, and compares policies on them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.timing import Timing
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.twin import report
from pointsman_simulator.twin.anew import Anew, World, decide_anew, figures, ranked
from pointsman_simulator.twin.build import RECORDED, Twin, build, compare_policies
from pointsman_simulator.twin.calibration import Clock, Comparison, Figure, verdict
from pointsman_simulator.twin.capacity import kv_tokens, most_sequences
from pointsman_simulator.twin.fit import Path, fit
from pointsman_simulator.twin.following import follow, traffic, with_answers
from pointsman_simulator.twin.measured import coefficients
from pointsman_simulator.twin.recording import (
    FleetChange,
    LoadReport,
    RecordedEngine,
    RecordedPool,
    RecordedRequest,
)
from pointsman_simulator.twin.what_if import WhatIf
from pointsman_simulator.workloads import generate_workload

pytestmark = pytest.mark.timeout(600)

TRUE = EngineConfig(timing=Timing(prefill_linear=0.03, decode_constant=9.0, speedup=1.5))
WAY_MS = 4.0


def recorded(
    trace: Sequence[TraceRequest], engines: Sequence[EngineConfig], policy: str = RECORDED, noise_ms: float = 1.0
) -> RecordedPool:
    """The record of a virtual run, with a way to the engine and noise. A log knows no blocks of answers."""
    names = [f"engine-{number}" for number in range(len(engines))]
    setting = Setting(len(engines), engines[0], scheduling={RECORDED: SchedulingPolicy()}, kv_events=False)
    outcomes = SimulatedFleet(engines, Lags()).replay_trace(trace, make_policy(policy, setting, 1))
    noise = np.abs(np.random.default_rng(0).normal(WAY_MS, noise_ms, (len(trace), 2)))
    requests: list[RecordedRequest] = []
    for row, (request, done, worker) in enumerate(zip(trace, outcomes.requests, outcomes.workers, strict=True)):
        requests.append(
            RecordedRequest(
                arrived_ms=request.arrival_ms,
                sent_ms=request.arrival_ms + outcomes.waited_ms[row],
                engine=names[worker],
                prompt_tokens=request.prompt_tokens,
                blocks=request.blocks[: request.prompt_tokens // 64],
                output_tokens=request.output_tokens,
                first_ms=done.first_token_at + float(noise[row, 0]),
                ended_ms=done.finished_at + float(noise[row, 1]),
            )
        )
    return RecordedPool(
        pool="pool",
        block_tokens=64,
        engines=tuple(
            RecordedEngine(name, ("model",), config.num_blocks * config.block_size)
            for name, config in zip(names, engines, strict=True)
        ),
        requests=requests,
        policy_name="default",
        policy=SchedulingPolicy(),
    )


def quiet(what: str, share: float) -> None:
    assert what
    assert 0.0 <= share <= 1.0


# Of the session: a worker that takes tests of this file a second time doesn't build them again.
@pytest.fixture(scope="session")
def chat() -> RecordedPool:
    return recorded(generate_workload("chat", 400, 10.0), [TRUE] * 2)


@pytest.fixture(scope="session")
def twin(chat: RecordedPool) -> Twin:
    return build(chat, 2, 2, quiet)


@pytest.mark.requirement("TWIN-2")
@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    linear=st.floats(0.005, 0.05),
    decode=st.floats(4.0, 20.0),
    slower=st.floats(0.6, 1.0),
    workload=st.sampled_from(["agents", "chat"]),
)
def test_the_fit_finds_the_pass_times_of_engines_of_any_speed(
    linear: float, decode: float, slower: float, workload: str
) -> None:
    timing = Timing(prefill_linear=linear, decode_constant=decode)
    engines = [EngineConfig(timing=timing), EngineConfig(timing=replace(timing, speedup=slower))]
    record = recorded(generate_workload(workload, 300, 4.0), engines, "round-robin")
    columns = traffic(record)
    found = fit(record, columns)
    for true, name in zip(engines, found.engines, strict=True):
        ours = found.engines[name].timing
        assert ours.prefill_ms(2000) == pytest.approx(true.timing.prefill_ms(2000), rel=0.06)
        assert ours.decode_ms(0.05, 4) == pytest.approx(true.timing.decode_ms(0.05, 4), rel=0.03)
    run = follow(columns, found.engines)
    ways = found.path.usual_times(columns.prompt_tokens)
    assert float(np.mean(run.first + ways)) == pytest.approx(float(np.mean(columns.first)), rel=0.02)
    assert float(np.mean(run.ended + ways)) == pytest.approx(float(np.mean(columns.ended)), rel=0.02)
    assert found.path.constant_ms == pytest.approx(WAY_MS, abs=2.0)


def test_the_time_between_two_moments_is_the_features_times_the_coefficients(chat: RecordedPool) -> None:
    columns = traffic(chat)
    run = follow(columns, {engine.name: TRUE for engine in chat.engines})
    times = run.after_first @ coefficients(TRUE.timing)
    assert times == pytest.approx(run.ended - run.first, abs=1e-6)


def test_a_size_of_passes_that_cuts_prompts_is_found() -> None:
    engine = replace(TRUE, max_num_batched_tokens=2048)
    record = recorded(generate_workload("bursts", 180, 1.5), [engine], "round-robin")
    assert fit(record, traffic(record)).engines["engine-0"].max_num_batched_tokens == 2048


def test_a_record_that_the_engines_explain_is_trusted(twin: Twin) -> None:
    assert twin.verdict.reasons == ()
    assert [check.how for check in twin.checks] == ["the engines", "the policy"]
    # The 99th percentile is one or two requests of the half that is checked: its bound is the verdict's.
    steady = [figure for check in twin.checks for figure in check.figures if figure.name != "p99"]
    assert all(abs(figure.error) < 0.05 for figure in steady)
    assert report.verdict(twin) == "Verdict: trust"


@pytest.mark.requirement("TWIN-3")
def test_an_engine_that_slows_down_midway_is_named_with_the_moment(chat: RecordedPool) -> None:
    middle = chat.requests[200].arrived_ms

    def slowed(request: RecordedRequest) -> RecordedRequest:
        if request.engine != "engine-1" or request.arrived_ms < middle:
            return request
        wait, rest = request.ttft_ms, request.e2e_ms - request.ttft_ms
        first = request.arrived_ms + 2 * wait
        return replace(request, first_ms=first, ended_ms=first + 2 * rest)

    found = build(replace(chat, requests=[slowed(request) for request in chat.requests]), 1, 1, quiet)
    assert not found.verdict.is_trusted
    [change] = found.changes
    assert change.engine == "engine-1"
    assert change.factor == pytest.approx(2.0, rel=0.2)
    assert change.at_ms == pytest.approx(middle, abs=2000)
    assert "engine-1 was" in found.verdict.reasons[0]
    assert "times slower" in found.verdict.reasons[0]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"changes": (FleetChange(7000.0, "engine-1 restarted"),)}, "engine-1 restarted at 7 s"),
        ({"lost": 12}, "the log lacks 12 inputs"),
        ({"policy": None}, "doesn't say which policy decided"),
    ],
)
def test_a_record_of_another_world_is_not_trusted(twin: Twin, changed: Mapping[str, object], says: str) -> None:
    record = replace(twin.recording, **changed)  # pyright: ignore[reportArgumentType] - named above
    [reason] = verdict(record, twin.checks, (), Clock(0)).reasons
    assert says in reason


def test_requests_that_were_cut_off_are_counted_and_not_judged(twin: Twin) -> None:
    requests = [replace(each, ok=number % 10 != 0) for number, each in enumerate(twin.recording.requests)]
    record = replace(twin.recording, requests=requests)
    assert int(np.isfinite(traffic(record).ended).sum()) == 360
    [reason] = verdict(record, twin.checks, (), Clock(0)).reasons
    assert reason.startswith("10% of the requests are of no use")


def test_a_missed_bar_is_a_reason_with_both_figures(twin: Twin) -> None:
    missed = Comparison("the engines", 500, (Figure("TTFT", "mean", 100.0, 106.0),))
    [reason] = verdict(twin.recording, [missed], (), Clock(0)).reasons
    assert reason == "the engines: TTFT mean 106 ms, recorded 100 (+6.0%; the bar is 5%)"
    kept = Comparison("the engines", 500, (Figure("TTFT", "p99", 100.0, 114.0), Figure("TTFT", "mean", 20.0, 22.0)))
    assert verdict(twin.recording, [kept], (), Clock(0)).is_trusted
    few = Comparison("the engines", 99, kept.figures)
    assert not verdict(twin.recording, [few], (), Clock(0)).is_trusted


def test_a_log_without_enough_answers_is_refused(chat: RecordedPool) -> None:
    with pytest.raises(ValueError, match="too few to fit"):
        build(replace(chat, requests=chat.requests[:20]), 1, 1, quiet)


def test_policies_are_compared_with_intervals_and_against_the_first(twin: Twin) -> None:
    compared = compare_policies(twin, [RECORDED, "round-robin"], {}, WhatIf(), 2, 2, quiet)
    ours, theirs = compared
    assert ours.ttft_mean.least <= ours.ttft_mean.value <= ours.ttft_mean.greatest
    assert ours.ttft_change.value == 0
    assert theirs.ttft_change.value > 0
    assert theirs.ttft_change.sure
    assert theirs.reuse < ours.reuse
    assert all(len(line) <= 80 for line in report.comparison(compared, WhatIf(arrivals=1.5)).splitlines())
    with pytest.raises(ValueError, match="unknown policy 'best'"):
        compare_policies(twin, ["best"], {}, WhatIf(), 1, 1, quiet)


@pytest.mark.requirement("TWIN-1")
def test_times_decided_anew_count_from_the_arrival_and_not_from_the_end_of_a_wait() -> None:
    trace = generate_workload("bursts", 200, 4.0)
    setting = Setting(2, TRUE, scheduling={RECORDED: SchedulingPolicy()}, kv_events=False)
    outcomes = SimulatedFleet([TRUE] * 2, setting.lags).replay_trace(trace, make_policy(RECORDED, setting, 0))
    assert sum(waited > 0 for waited in outcomes.waited_ms) > 20
    world = World(trace, {"engine-0": TRUE, "engine-1": TRUE}, Path(), setting)
    [anew] = decide_anew(world, [RECORDED], 1, 1)[RECORDED]
    arrivals = np.array([request.arrival_ms for request in trace])
    assert anew.ttft == pytest.approx(np.array([done.first_token_at for done in outcomes.requests]) - arrivals)
    assert anew.e2e == pytest.approx(np.array([done.finished_at for done in outcomes.requests]) - arrivals)


BY_CHANCE = SchedulingPolicy.model_validate({"filters": ["healthy"], "scorers": [], "picker": "random"})


@pytest.mark.requirement("TWIN-2")
def test_a_policy_that_draws_gets_the_draws_of_the_log_in_every_run() -> None:
    trace = generate_workload("chat", 60, 10.0)
    own = Setting(2, TRUE, scheduling={RECORDED: BY_CHANCE}, kv_events=False)

    def choices(setting: Setting) -> set[tuple[int, ...]]:
        fleets = [SimulatedFleet([TRUE] * 2) for _ in range(3)]
        return {
            tuple(fleet.replay_trace(trace, make_policy(RECORDED, setting, seed)).workers)
            for seed, fleet in enumerate(fleets)
        }

    assert len(choices(own)) == 3
    assert len(choices(replace(own, ties=tuple(range(7, 67))))) == 1


def test_random_choices_are_predicted_from_their_seeds() -> None:
    trace = generate_workload("chat", 200, 10.0)
    setting = Setting(2, TRUE, scheduling={RECORDED: BY_CHANCE}, kv_events=False, ties=tuple(range(9, 209)))
    done = SimulatedFleet([TRUE] * 2).replay_trace(trace, make_policy(RECORDED, setting, 0))
    world = World(trace, {"engine-0": TRUE, "engine-1": TRUE}, Path(WAY_MS, 0.0, (-2.0, 0.0, 2.0)), setting)
    observed = np.array([each.first_token_at for each in done.requests]) - np.array(done.arrived)
    for anew in decide_anew(world, [RECORDED], 2, 1)[RECORDED]:
        assert float(np.quantile(anew.ttft - WAY_MS, 0.99)) == pytest.approx(
            float(np.quantile(observed, 0.99)), rel=0.1
        )


def test_runs_without_draws_differ_by_when_requests_reach_their_engines() -> None:
    trace = generate_workload("chat", 200, 10.0)
    setting = Setting(2, TRUE, scheduling={RECORDED: SchedulingPolicy()}, kv_events=False)
    world = World(trace, {"engine-0": TRUE, "engine-1": TRUE}, Path(WAY_MS, 0.0, (-4.0, 0.0, 4.0)), setting)
    one, other = decide_anew(world, [RECORDED], 2, 1)[RECORDED]
    # The ways themselves differ by 8 ms at most; the rest is choices, and what follows from them.
    assert float(np.abs(one.e2e - other.e2e).max()) > 20.0


def test_two_policies_whose_difference_may_be_none_are_a_tie() -> None:
    draws = np.random.default_rng(1)
    arrived = np.arange(1000, dtype=np.float64) * 100.0
    means = (("a", 101.0), ("b", 100.0), ("slow", 200.0))
    times = {name: draws.standard_exponential(1000) * mean for name, mean in means}
    compared = figures({name: [Anew(each, 2 * each, 0.5)] for name, each in times.items()}, arrived)
    assert [each.ttft_ties for each in compared] == [("b",), ("a",), ()]
    best, second = sorted(("a", "b"), key=lambda name: float(times[name].mean()))
    assert ranked(compared) == f"{best} = {second} < slow"
    text = report.comparison(compared, WhatIf())
    assert text.endswith(f"Order by TTFT (= is a tie): {best} = {second} < slow")
    assert "tie (" in text.splitlines()[4]
    assert "tie (" not in text.splitlines()[5]


def test_an_error_that_two_runs_may_have_counts_as_none() -> None:
    assert not Figure("TTFT", "p99", 1000.0, 1200.0).is_within
    assert not Figure("TTFT", "p99", 1000.0, 1200.0, chance_ms=90.0).is_within
    assert Figure("TTFT", "p99", 1000.0, 1200.0, chance_ms=110.0).is_within


def test_each_what_if_changes_its_own_setting(twin: Twin) -> None:
    def waits(change: WhatIf) -> float:
        [found] = compare_policies(twin, ["round-robin"], {}, change, 1, 1, quiet)
        return found.e2e_mean.value

    usual = waits(WhatIf())
    assert waits(WhatIf(arrivals=2.0)) > usual
    assert waits(WhatIf(bursts=3.0)) > usual
    assert waits(WhatIf(engines=2)) < usual < waits(WhatIf(engines=-1))
    assert waits(WhatIf(speeds={"model": 2.0})) < usual < waits(WhatIf(speeds={"engine-0": 0.5}))


def test_the_report_fits_80_columns(twin: Twin) -> None:
    text = "\n".join([report.about(twin), *(report.check(check) for check in twin.checks), report.verdict(twin)])
    assert max(len(line) for line in text.splitlines()) <= 80


def test_an_answer_is_known_from_the_next_turn_and_not_from_another_conversation() -> None:
    def request(at: float, blocks: list[int], output: int) -> RecordedRequest:
        return RecordedRequest(at, at, "e", len(blocks) * 10 + 3, blocks, output, first_ms=at + 1, ended_ms=at + 2)

    first, second = request(0.0, [1, 2, 3], 27), request(10.0, [1, 2, 3, 4, 5, 6, 7], 5)
    assert with_answers([first, second], 10) == [[1, 2, 3, 4, 5, 6], second.blocks]
    other = request(20.0, [1, 2, 3, 8, 9, 10, 11], 5)
    assert with_answers([first, second, other], 10)[0] == [1, 2, 3]


def test_repeated_answers_are_found_in_the_times(twin: Twin, chat: RecordedPool) -> None:
    named = sum(
        len(request.blocks) - len(own.blocks)
        for request, own in zip(twin.recorded.requests, chat.requests, strict=True)
    )
    assert named > 100  # the chat workload's next turns repeat the answers, and its engines had them in their caches


def test_the_cache_and_the_batch_are_read_from_load_reports_where_they_are_not_registered() -> None:
    requests = [
        RecordedRequest(at, at, "e", 1000, [], 200, first_ms=at, ended_ms=at + 100.0)
        for at in np.arange(0.0, 1000.0, 10)
    ]
    reports = tuple(LoadReport(at, 10, 3, 0.5) for at in np.arange(205.0, 900.0, 20))
    engine = RecordedEngine("e", reports=reports)
    record = RecordedPool("pool", 64, (engine,), requests)
    assert kv_tokens(engine, record) == pytest.approx(22_000, rel=0.02)
    assert most_sequences(engine) == 10
    assert most_sequences(replace(engine, reports=())) == EngineConfig().max_num_seqs


BY_REPORTS = SchedulingPolicy.model_validate(
    {"filters": ["healthy"], "scorers": [{"use": "queue"}], "picker": "max-score"}
)


@pytest.mark.requirement("TWIN-2")
def test_between_reports_a_policy_counts_what_it_sent_as_the_real_scheduler_does() -> None:
    """A report of constant age arrives with each decision, and hides requests that were sent after it."""
    trace = [TraceRequest(100.0 * number, 20_000, 4, []) for number in range(4)]
    setting = Setting(4, TRUE, scheduling={RECORDED: BY_REPORTS}, kv_events=False)
    gaps = [np.array([1000.0])] * 4
    fleet = {f"engine-{number}": TRUE for number in range(4)}
    [anew] = decide_anew(World(trace, fleet, Path(), setting, gaps), [RECORDED], 1, 1)[RECORDED]
    assert len(set(anew.ttft.round(3))) == 1  # each had an engine of its own
