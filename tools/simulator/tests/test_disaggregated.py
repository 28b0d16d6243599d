"""Requests on two engines in virtual time: what the scheduler learns of them, and when it shares one."""

import pytest

from pointsman_core.config import SchedulingPolicy
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_simulator.engine import EngineConfig, EngineModel
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.sequence import Sequence
from pointsman_simulator.trace import TraceRequest

ROLES = ("prefill", "decode")
PROMPT = 4000


def trace(count: int, every_ms: float, answer: int) -> list[TraceRequest]:
    """Prompts that share nothing."""
    return [
        TraceRequest(number * every_ms, PROMPT, answer, list(range(first, first + (PROMPT + answer) // 64)))
        for number in range(count)
        for first in [(number + 1) << 24]
    ]


def router(decider: str) -> SchedulerPolicy:
    settings = SchedulingPolicy.model_validate(
        {
            "handler": {"use": "disaggregated", "prefill_when": decider},
            "deciders": [decider],
            "profiles": {
                name: {"filters": [{"use": "role", "role": name}], "scorers": ["least-delay"]} for name in ROLES
            },
        }
    )
    return SchedulerPolicy(len(ROLES), settings, roles=ROLES)


def test_an_engine_begins_to_answer_a_prompt_that_another_one_computed_in_one_step() -> None:
    engine = EngineModel(EngineConfig())
    sequence = Sequence(1, PROMPT, 3, list(range(PROMPT // 64)))
    sequence.carried = True
    engine.submit_sequence(sequence, 0.0)
    ends = engine.begin_pass(0.0)
    assert ends is not None
    assert ends < 10.0
    engine.finish_pass()
    assert (sequence.generated, sequence.computed) == (1, PROMPT)
    assert engine.kv_usage == pytest.approx(-(-PROMPT // 64) / 16384)


def test_a_request_on_two_engines_takes_its_prompt_its_handover_and_a_step() -> None:
    fleet, lags = SimulatedFleet([EngineConfig()] * 2), Lags()
    outcomes = fleet.replay_trace(trace(3, 2000.0, 5), router("always"))
    prefill_ms = EngineConfig().timing.prefill_ms(PROMPT)
    handover_ms = lags.handover + lags.handover_token * PROMPT
    assert all(request.carried for request in outcomes.requests)
    for request, arrived in zip(outcomes.requests, outcomes.arrived, strict=True):
        assert 0.0 < request.first_token_at - arrived - prefill_ms - handover_ms < 10.0


def test_the_handover_between_two_engines_is_learnt_from_first_tokens() -> None:
    policy, lags = router("always"), Lags()
    SimulatedFleet([EngineConfig()] * 2).replay_trace(trace(300, 150.0, 20), policy)
    (producer,) = policy.schedulers[0].policy.producers
    assert isinstance(producer, DelayPrediction)
    model = producer.estimator
    told_ms = model.handovers.predict_ms((0, 1), PROMPT)
    assert model.best.model.is_trusted
    assert model.best.model.relative_error < 0.2
    assert told_ms == pytest.approx(lags.handover + lags.handover_token * PROMPT, rel=0.35)


def test_a_prompt_is_computed_elsewhere_where_answers_would_wait_for_it() -> None:
    alone = SimulatedFleet([EngineConfig()] * 2).replay_trace(trace(60, 1500.0, 20), router("pays")).requests[40:]
    many = SimulatedFleet([EngineConfig()] * 2).replay_trace(trace(200, 150.0, 600), router("pays")).requests[100:]
    assert sum(request.carried for request in alone) <= 2
    assert sum(request.carried for request in many) > 80
