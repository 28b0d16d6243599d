"""The event of a decision, which is written past the model that its readers have."""

import json

import numpy as np
import pytest

from pointsman_contracts.journey import RequestFacts, StageReport, Target
from pointsman_contracts.scheduling import CandidateColumns, LegsForecast, PreludeForecast, RequestScheduled
from pointsman_contracts.session import RequestSession, SessionTurn
from pointsman_scheduler.scheduled_event import ScheduledEvent, describe_decision
from pointsman_testing import builders
from pointsman_testing.scheduler_bench import Bench


@pytest.mark.parametrize("shown", [256, 3])
def test_the_event_has_every_field_of_the_contract_in_its_own_type_and_no_other(shown: int) -> None:
    bench = Bench(
        {
            "handler": "shadow",
            "profiles": {"default": {}, "tried": {"filters": [{"use": "role", "role": "encode"}]}},
        }
    )
    bench.join("w0", "w1", "w2", "w3")
    bench.hear("w1", state="draining")
    bench.register("w4")
    bench.register("w5", engine="opaque")
    bench.hear("w5")
    bench.now += 0.0123
    target = Target(model="llama-8b", pool="llama")
    facts = RequestFacts(api="chat.completions", prompt_tokens=100, session="s1")
    trail = (StageReport(stage="guard", instance="guard-1"),)
    journey = builders.journey("scheduler", target=target, trail=trail, request=facts)
    outcome = bench.decide(bench.prompt(family=1, blocks=4))
    outcome.holds[0].fetch_ms = 1.25
    outcome.fetched = {"host": np.arange(6.0)}
    forecast = outcome.selection.forecast = LegsForecast(
        worker="w2", alone=2.0, apart=1.5, alone_ttft_ms=20.0, apart_ttft_ms=21.5, prefill_ms=10.0, handover_ms=5.0
    )
    report = StageReport(stage="scheduler", instance="scheduler-1", note="6 workers")
    told = ScheduledEvent(journey, target, bench.policy, 1, outcome, 5e-5, 0.0, report, None, 7, None)
    turn = SessionTurn(tenant="acme", number=3, continues=True, last_worker="w1", gap_ms=2.5)
    payload = describe_decision(told, "me", 3, shown, turn).encode()
    event = RequestScheduled.decode(payload)
    document = json.loads(payload)
    assert RequestScheduled.decode(event.encode()) == event
    assert document.keys() == set(RequestScheduled.__struct_fields__) - {"dry_run"}  # no real request has it
    for run in document["runs"]:
        assert run["candidates"].keys() == set(CandidateColumns.__struct_fields__)
    assert event.forecast == forecast
    assert (event.session, event.turn) == (RequestSession(id="s1"), turn)
    assert event.prelude == PreludeForecast(fetch_ms=1.25)
    assert (event.source, event.sequence, event.trail[-1].note) == ("me", 3, "6 workers")
