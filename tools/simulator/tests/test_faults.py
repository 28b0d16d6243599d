"""Fault specifications are strict: a misspelt one would silently test nothing."""

import re

import pytest

from pointsman_simulator.faults import Fault, FaultPlan, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("refuse", Fault("refuse")),
        ("stall@0.5", Fault("stall", share=0.5)),
        ("slow=4", Fault("slow", 4.0)),
        ("error=503@0.1", Fault("error", 503.0, 0.1)),
        ("die=12", Fault("die", 12.0)),
    ],
)
def test_a_fault_is_read_as_written(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode", "unknown fault 'explode'; known: refuse, stall"),
        ("error", "expected 'error=HTTP STATUS"),
        ("refuse=1", "expected 'refuse'"),
        ("error=200", "HTTP status 400 to 599"),
        ("error=x", "'x' is not a number"),
        ("die=1.5", "number of tokens"),
        ("slow=0", "above 0"),
        ("slow=2@0.5", "@share"),
        ("stall@2", "@share"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_fault(text)


def test_a_share_hits_that_share_of_the_requests() -> None:
    plan = FaultPlan([Fault("error", 503.0, 0.25)], seed=1)
    hits = sum("error" in plan.draw_faults() for _ in range(4000))
    assert 900 < hits < 1100
