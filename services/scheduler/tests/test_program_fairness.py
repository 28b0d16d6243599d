"""`fairness: program` shares an engine's time between runs of agents, within each tenant."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.agent import find_program
from pointsman_contracts.message import JsonValue
from pointsman_plugins.scheduling.flow_control import Demand
from pointsman_scheduler.plugins.fairness.least_attained import LeastAttainedParams
from pointsman_scheduler.plugins.fairness.program import TENANTS, ProgramFairness


def policy(**params: object) -> ProgramFairness:
    return ProgramFairness("program", LeastAttainedParams.model_validate(params))


def demand(number: int, tenant: str, program: str, tokens: int = 100) -> Demand:
    return Demand(number, 0.0, flow=tenant, program=program, prefill_tokens=tokens)


def share(waiting: list[Demand], turns: int, **params: object) -> Counter[tuple[str, str]]:
    """Tokens of each tenant's programs in the first turns, while all go on waiting."""
    fairness = policy(**params)
    state = fairness.turns()
    by_flow = {fairness.flow_of(each): each for each in waiting}
    for flow in by_flow:
        state.enter(flow, 0.0)
    served: Counter[tuple[str, str]] = Counter()
    for _ in range(turns):
        flow = state.next(0.0)
        each = by_flow[flow]
        state.served(each, flow, 0.0)
        served[each.flow, each.program] += each.prefill_tokens
    return served


def test_runs_of_a_tenant_get_equal_tokens_whatever_the_size_of_their_requests() -> None:
    served = share([demand(1, "a", "long", 1000), demand(2, "a", "short", 100)], 110)
    assert served["a", "long"] == served["a", "short"] == 10_000


def test_a_session_for_each_request_takes_turns_from_its_own_tenant_alone() -> None:
    many = [demand(number, "greedy", f"s{number}") for number in range(50)]
    served = share([*many, demand(99, "modest", "s")], 100)
    assert served["modest", "s"] == 5_000


def test_weights_are_of_tenants() -> None:
    served = share([demand(1, "gold", "x"), demand(2, "tin", "y")], 80, weights={"gold": 3.0})
    assert (served["gold", "x"], served["tin", "y"]) == (6_000, 2_000)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=60))
def test_each_flow_that_entered_gets_its_turn(entered: list[tuple[str, str]]) -> None:
    fairness = policy()
    state = fairness.turns()
    flows = {fairness.flow_of(demand(0, *each)): demand(0, *each) for each in entered}
    for flow in flows:
        state.enter(flow, 0.0)
    for _ in range(len(flows)):
        flow = state.next(0.0)
        state.served(flows.pop(flow), flow, 0.0)
        state.leave(flow)
    assert not flows


def test_tenants_that_are_gone_are_forgotten() -> None:
    fairness = policy()
    state = fairness.turns()
    for number in range(TENANTS + 100):
        each = demand(number, f"t{number}", "s")
        flow = fairness.flow_of(each)
        state.enter(flow, 0.0)
        state.served(each, state.next(0.0), 0.0)
        state.leave(flow)
    assert len(vars(state)["_programs"]) == TENANTS


@pytest.mark.parametrize(
    ("session", "agent", "program"),
    [
        ("s", None, "s"),
        ("s", {"name": "codex"}, "s"),
        ("s/explorer", {"name": "claude-code", "parent": "s"}, "s"),
        ("s", "no object", "s"),
        ("s", {"parent": 7}, "s"),
        (None, {"parent": "s"}, ""),
    ],
)
def test_a_sub_agent_belongs_to_the_program_of_its_parent(session: str | None, agent: JsonValue, program: str) -> None:
    assert find_program(session, {} if agent is None else {"agent": agent}) == program
