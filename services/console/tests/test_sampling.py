"""Which decisions a page shows."""

from collections import Counter

import pytest

from pointsman_console.domain.decision_rows import row_of, wants
from pointsman_console.domain.sampling import DecisionFilter, Reservoir, Sampler, request_of
from pointsman_contracts.identity import Identity
from pointsman_contracts.message import read_fields
from pointsman_contracts.response import RequestRejected, ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing.builders import scheduled


def completed(request_id: str, tenant: str = "acme", **changes: object) -> ResponseCompleted:
    fields: dict[str, object] = {
        "request_id": request_id, "source": "edge-1", "sequence": 1, "at_ms": 5, "pool": "p", "worker": "w-1",
        "status": 200, "outcome": "ok", "identity": Identity(tenant=tenant), "model": "llama",
    }  # fmt: skip
    return read_fields(ResponseCompleted, fields | changes)


def test_a_sample_is_even() -> None:
    counts: Counter[bytes] = Counter()
    for seed in range(2000):
        reservoir = Reservoir(2, seed)
        for number in range(10):
            reservoir.offer_event(bytes([number]))
        counts.update(reservoir.take_sample())
    assert sum(counts.values()) == 4000
    assert all(320 < count < 480 for count in counts.values()), counts


def test_everything_is_shown_while_it_is_few_and_counted_when_it_is_many() -> None:
    sampler = Sampler(DecisionFilter(), room=3, seed=1)
    for number in range(3):
        sampler.sample_decision(scheduled(request_id=f"r-{number}").encode())
    sample, ends, seen = sampler.take_sample()
    assert ([request_of(each) for each in sample], ends) == ([b"r-0", b"r-1", b"r-2"], [])
    assert (seen.decisions, seen.fitting, seen.impaired) == (3, 3, 0)
    for number in range(100):
        sampler.sample_decision(scheduled(request_id=f"q-{number}", level="degraded").encode())
    sample, _, seen = sampler.take_sample()
    assert (len(sample), seen.decisions, seen.impaired) == (3, 100, 100)


def test_a_rejection_counts_as_a_decision_and_not_as_one_below_the_full_level() -> None:
    sampler = Sampler(DecisionFilter(), room=3, seed=1)
    rejected = RequestRejected(
        request_id="r-1",
        source="preprocessor-1",
        sequence=1,
        at_ms=5,
        stage="preprocessor",
        status=404,
        reason="unknown model",
    )
    sampler.sample_decision(rejected.encode())
    _, _, seen = sampler.take_sample()
    assert (seen.decisions, seen.impaired) == (1, 0)


def test_a_request_on_the_page_gets_its_end_and_no_other_does() -> None:
    sampler = Sampler(DecisionFilter(), room=1, seed=1)
    # An end may come before the sample that its decision gets into is taken.
    sampler.sample_decision(scheduled(request_id="fast").encode())
    sampler.sample_end(completed("fast").encode())
    sampler.sample_end(completed("stranger").encode())
    _, ends, _ = sampler.take_sample()
    assert [request_of(each) for each in ends] == [b"fast"]
    sampler.sample_decision(scheduled(request_id="slow").encode())
    assert sampler.take_sample()[1] == []
    sampler.sample_end(completed("slow").encode())
    assert [request_of(each) for each in sampler.take_sample()[1]] == [b"slow"]
    assert sampler.take_sample()[1] == []


@pytest.mark.parametrize(
    "wanted",
    [
        DecisionFilter(model="llama-8b"),
        DecisionFilter(level="degraded"),
        DecisionFilter(endpoint="engine-2"),
        DecisionFilter(reason="SHORTER queue"),
    ],
    ids=lambda wanted: "".join(wanted),
)
def test_a_filter_lets_through_what_it_names_and_counts_the_rest(wanted: DecisionFilter) -> None:
    fits = scheduled(
        request_id="yes", model="llama-8b", level="degraded", endpoints=("engine-2",), reason="shorter queue: 1, a 2"
    )
    other = scheduled(request_id="no", model="other", level="full", endpoints=("engine-1",), reason="chance")
    sampler = Sampler(wanted, room=10)
    for each in (fits, other):
        sampler.sample_decision(each.encode())
    sample, _, seen = sampler.take_sample()
    assert [request_of(each) for each in sample] == [b"yes"]
    assert (seen.decisions, seen.fitting) == (2, 1)
    row = row_of(RequestScheduled.decode(sample[0]))
    assert row is not None
    assert wants(wanted, row)


def test_with_a_tenant_rows_come_from_the_ends_of_its_requests() -> None:
    sampler = Sampler(DecisionFilter(tenant="acme"), room=10)
    sampler.sample_decision(scheduled(request_id="r-1").encode())
    sampler.sample_end(completed("r-1").encode())
    sampler.sample_end(completed("r-2", tenant="other").encode())
    sample, _, seen = sampler.take_sample()
    assert [request_of(each) for each in sample] == [b"r-1"]
    assert seen.fitting == 1


def test_bytes_that_look_like_a_filters_are_refused_by_the_value() -> None:
    event = RequestRejected(
        request_id="r", source="e", sequence=1, at_ms=1, stage="guard", status=403, reason='"model":"llama"'
    )
    row = row_of(event)
    assert row is not None
    assert not wants(DecisionFilter(model="llama"), row)
