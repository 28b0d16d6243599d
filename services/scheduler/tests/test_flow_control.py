"""Flow control: which requests wait, which leave, and with which outcome."""

import math
from collections.abc import Callable

import pytest

from pointsman_core.config.flow_control import Band, FlowControl
from pointsman_core.config.section import PluginUse
from pointsman_core.plugins import PluginError
from pointsman_scheduler.domain.flow_control import (
    Capacity,
    Dispatch,
    Drop,
    Dropped,
    FlowController,
    FlowPolicy,
    Item,
    Parked,
    compile_flow_control,
)
from pointsman_scheduler.plugins.fairness.in_requests import SLACK
from pointsman_scheduler.plugins.flow_control import flow_registries

FREE = Capacity(endpoints=2, saturation=0.4)
FULL = Capacity(endpoints=2, saturation=1.0)
NOBODY = Capacity(endpoints=0, saturation=0.0)


REGISTRIES = flow_registries()


def policy(**settings: object) -> FlowPolicy:
    return compile_flow_control(FlowControl.model_validate(settings), REGISTRIES)


def item(name: str, at: float = 0.0, **facts: object) -> Item[str]:
    return Item(name, at, payload=f"payload of {name}", **facts)  # pyright: ignore[reportArgumentType]


def going(flow: FlowController[str], now: float, slots: float = math.inf) -> list[str]:
    """Names of what a wake dispatches while `slots` are free."""
    taken = 0

    def gauge() -> Capacity:
        return Capacity(2, 0.0 if taken < slots else 1.0)

    names: list[str] = []
    for outcome in flow.wake_requests(now, gauge):
        taken += isinstance(outcome, Dispatch)
        names += [str(outcome.item.request)] if isinstance(outcome, Dispatch) else []
    return names


def dropped(flow: FlowController[str], now: float, capacity: Capacity = FULL) -> dict[str, Drop]:
    return {str(o.item.request): o.drop for o in flow.wake_requests(now, lambda: capacity) if isinstance(o, Dropped)}


def _full_queue() -> Dropped[str]:
    flow = FlowController[str](policy(default_band={"max_requests": 1}))
    flow.offer_request(item("first"), 0.0, FULL)
    return _only(flow.offer_request(item("second"), 0.0, FULL))


def _over_quota() -> Dropped[str]:
    flow = FlowController[str](policy(max_bytes=100))
    flow.offer_request(item("first", size=60), 0.0, FULL)
    return _only(flow.offer_request(item("second", size=60), 0.0, FULL))


def _shed() -> Dropped[str]:
    return _only(FlowController[str](policy()).offer_request(item("batch", priority=-1), 0.0, FULL))


def _empty_pool_and_full_queue() -> Dropped[str]:
    flow = FlowController[str](policy(default_band={"max_requests": 1}))
    flow.offer_request(item("first"), 0.0, NOBODY)
    return _only(flow.offer_request(item("second"), 0.0, NOBODY))


def _empty_pool_and_no_patience() -> Dropped[str]:
    return _only(FlowController[str](policy(no_endpoint_ttl=0)).offer_request(item("a"), 0.0, NOBODY))


def _after(seconds: float, capacity: Capacity, **facts: object) -> Dropped[str]:
    flow = FlowController[str](policy(ttl=20))
    flow.offer_request(item("a", 0.0, **facts), 0.0, capacity)
    (outcome,) = flow.wake_requests(seconds, lambda: capacity)
    return _only(outcome)


def _late_from_the_start() -> Dropped[str]:
    return _only(FlowController[str](policy()).offer_request(item("a", deadline=5.0), 5.0, FREE))


def _cancelled() -> Dropped[str]:
    flow = FlowController[str](policy())
    flow.offer_request(item("a"), 0.0, FULL)
    return _only(flow.cancel_request("a", 1.0))


def _shut_down_while_expired() -> Dropped[str]:
    flow = FlowController[str](policy(ttl=20))
    flow.offer_request(item("a"), 0.0, FULL)
    (outcome,) = flow.shut_down(30.0)
    return outcome


def _offered_after_shut_down() -> Dropped[str]:
    flow = FlowController[str](policy())
    flow.shut_down(0.0)
    return _only(flow.offer_request(item("a"), 1.0, FREE))


def _only(outcome: Dispatch[str] | Parked[str] | Dropped[str] | None) -> Dropped[str]:
    assert isinstance(outcome, Dropped)
    return outcome


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (_full_queue, 429, "rejected-saturated"),
        (_over_quota, 429, "rejected-saturated"),
        (_shed, 429, "rejected-saturated"),
        (_empty_pool_and_full_queue, 503, "rejected-no-endpoints"),
        (_empty_pool_and_no_patience, 503, "rejected-no-endpoints"),
        (lambda: _after(20.0, FULL), 429, "rejected-ttl-expired"),
        (lambda: _after(20.0, NOBODY), 503, "rejected-no-endpoints"),
        (lambda: _after(5.0, FULL, deadline=5.0), 504, "rejected-deadline-exceeded"),
        (lambda: _after(5.0, NOBODY, deadline=5.0), 504, "rejected-deadline-exceeded"),
        (_late_from_the_start, 504, "rejected-deadline-exceeded"),
        (_cancelled, 503, "rejected-context-cancelled"),
        (_shut_down_while_expired, 503, "rejected-shutting-down"),
        (_offered_after_shut_down, 503, "rejected-shutting-down"),
    ],
)
def test_each_way_to_end_has_one_status_and_one_reason(
    end: Callable[[], Dropped[str]], status: int, reason: str
) -> None:
    refusal = end().refusal
    assert (refusal.status, refusal.dropped_reason) == (status, reason)
    assert refusal.retry_after_s is not None
    assert refusal.retry_after_s >= 1
    assert refusal.code
    assert refusal.message


def test_a_request_goes_at_once_while_there_is_capacity() -> None:
    flow = FlowController[str](policy())
    outcome = flow.offer_request(item("a"), 3.0, FREE)
    assert isinstance(outcome, Dispatch)
    assert (outcome.item.payload, outcome.queued_s, len(flow.waiting)) == ("payload of a", 0.0, 0)


def test_a_request_waits_while_the_pool_is_saturated_and_goes_when_it_is_not() -> None:
    flow = FlowController[str](policy())
    assert isinstance(flow.offer_request(item("a", at=1.0), 1.0, FULL), Parked)
    assert list(flow.wake_requests(1.5, lambda: FULL)) == []
    (outcome,) = flow.wake_requests(3.0, lambda: FREE)
    assert isinstance(outcome, Dispatch)
    assert outcome.queued_s == 2.0
    assert flow.next_wake_at(3.0) is None


def test_disabled_flow_control_lets_everything_go_saturated_or_not() -> None:
    flow = FlowController[str](policy(enabled=False))
    assert isinstance(flow.offer_request(item("a"), 0.0, FULL), Dispatch)
    assert isinstance(flow.offer_request(item("b"), 0.0, NOBODY), Dispatch)


def test_a_newcomer_waits_behind_those_that_wait_even_if_there_is_capacity() -> None:
    flow = FlowController[str](policy())
    flow.offer_request(item("early"), 0.0, FULL)
    assert isinstance(flow.offer_request(item("late", at=1.0), 1.0, FREE), Parked)
    assert going(flow, 1.0) == ["early", "late"]


def test_a_higher_newcomer_passes_a_lower_band_that_waits() -> None:
    flow = FlowController[str](policy())
    flow.offer_request(item("low"), 0.0, FULL)
    assert isinstance(flow.offer_request(item("high", priority=1), 0.0, FREE), Dispatch)


def test_a_lower_band_waits_while_a_higher_one_does_even_where_its_own_ceiling_would_let_it() -> None:
    flow = FlowController[str](policy(bands={5: {"ceiling": 0.5}}, default_band={"ceiling": 0.9}))
    half = Capacity(2, 0.6)
    assert isinstance(flow.offer_request(item("high", priority=5), 0.0, half), Parked)
    assert isinstance(flow.offer_request(item("low"), 0.0, half), Parked)
    assert list(flow.wake_requests(0.0, lambda: half)) == []


def test_a_low_ceiling_keeps_room_for_higher_bands() -> None:
    flow = FlowController[str](policy(bands={0: {"ceiling": 0.5}, 1: {}}))
    busy = Capacity(2, 0.7)
    assert isinstance(flow.offer_request(item("low"), 0.0, busy), Parked)
    assert isinstance(flow.offer_request(item("high", priority=1), 0.0, busy), Dispatch)


def test_the_choice_made_for_one_request_counts_for_the_next() -> None:
    flow = FlowController[str](policy())
    for name in "abc":
        flow.offer_request(item(name), 0.0, FULL)
    assert going(flow, 1.0, slots=2) == ["a", "b"]
    assert len(flow.waiting) == 1


def test_a_request_that_is_sent_again_keeps_its_place_and_gets_its_answer_at_the_new_address() -> None:
    flow = FlowController[str](policy())
    flow.offer_request(item("a"), 0.0, FULL)
    flow.offer_request(item("b"), 0.0, FULL)
    again = item("a", at=1.0)
    again.payload = "second attempt"
    assert isinstance(flow.offer_request(again, 1.0, FULL), Parked)
    first, second = flow.wake_requests(2.0, lambda: FREE)
    assert isinstance(first, Dispatch)
    assert (first.item.payload, second.item.request) == ("second attempt", "b")
    assert len(flow.waiting) == 0


def test_a_client_that_hangs_up_leaves_at_once_and_only_once() -> None:
    flow = FlowController[str](policy())
    flow.offer_request(item("a", size=10), 0.0, FULL)
    assert flow.cancel_request("a", 1.0) is not None
    assert flow.cancel_request("a", 1.0) is None
    assert (len(flow.waiting), flow.measure_queues().bytes, going(flow, 2.0)) == (0, 0, [])


def test_requests_wait_for_the_first_endpoint_as_long_as_its_own_budget_says() -> None:
    flow = FlowController[str](policy(ttl=10, no_endpoint_ttl=300))
    flow.offer_request(item("a"), 0.0, NOBODY)
    assert dropped(flow, 299.0, NOBODY) == {}
    assert going(flow, 299.5) == ["a"]


def test_a_first_endpoint_starts_the_budget_anew_but_never_past_the_larger_one() -> None:
    flow = FlowController[str](policy(ttl=10, no_endpoint_ttl=15))
    flow.offer_request(item("a"), 0.0, NOBODY)
    assert dropped(flow, 14.0, FULL) == {}
    assert dropped(flow, 14.9, FULL) == {}
    assert dropped(flow, 15.0, FULL) == {"a": Drop.EXPIRED}


def test_losing_the_last_endpoint_starts_the_other_budget() -> None:
    flow = FlowController[str](policy(ttl=20, no_endpoint_ttl=3))
    flow.offer_request(item("a"), 0.0, FULL)
    assert dropped(flow, 10.0, NOBODY) == {}
    assert flow.next_wake_at(12.99) == 13.0
    assert dropped(flow, 13.0, NOBODY) == {"a": Drop.NO_ENDPOINTS}


def test_a_full_pool_queue_displaces_the_latest_of_the_lowest_band() -> None:
    flow = FlowController[str](policy(max_requests=3))
    for name, priority in (("low 1", 0), ("mid", 1), ("low 2", 0)):
        flow.offer_request(item(name, priority=priority), 0.0, FULL)
    assert isinstance(flow.offer_request(item("high", priority=2), 1.0, FULL), Parked)
    assert flow.next_wake_at(1.0) == 1.0
    assert dropped(flow, 1.0) == {"low 2": Drop.SATURATED}
    assert going(flow, 2.0) == ["high", "mid", "low 1"]


def test_a_displaced_request_that_is_sent_again_before_its_rejection_ends_once() -> None:
    flow = FlowController[str](policy(max_requests=1))
    flow.offer_request(item("low"), 0.0, FULL)
    flow.offer_request(item("high", priority=1), 0.0, FULL)
    again = item("low", at=1.0)
    again.payload = "second attempt"
    ended = _only(flow.offer_request(again, 1.0, FULL))
    assert (ended.drop, ended.item.payload) == (Drop.SATURATED, "second attempt")
    assert dropped(flow, 1.0) == {}


def test_nothing_is_displaced_for_a_request_that_would_not_fit_all_the_same() -> None:
    flow = FlowController[str](policy(max_bytes=100))
    flow.offer_request(item("low", size=30), 0.0, FULL)
    flow.offer_request(item("high", size=60, priority=1), 0.0, FULL)
    assert isinstance(flow.offer_request(item("huge", size=80, priority=1), 0.0, FULL), Dropped)
    assert len(flow.waiting) == 2


def test_a_band_counts_bytes_as_well_as_requests() -> None:
    flow = FlowController[str](policy(bands={0: {"max_bytes": "1KB"}}))
    assert isinstance(flow.offer_request(item("a", size=900), 0.0, FULL), Parked)
    assert isinstance(flow.offer_request(item("b", size=101), 0.0, FULL), Dropped)
    assert isinstance(flow.offer_request(item("c", size=100), 0.0, FULL), Parked)


def test_priorities_invented_by_clients_do_not_make_bands_without_end() -> None:
    flow = FlowController[str](policy())
    for priority in range(1000):
        flow.offer_request(item(f"r{priority}", priority=priority), 0.0, FULL)
    assert len(flow.waiting) == 1000
    assert len(flow.measure_queues().by_band) <= 64


def test_retry_after_is_what_the_measured_drain_rate_says() -> None:
    flow = FlowController[str](policy(default_band={"max_requests": 40}, ttl=1000))
    names = iter(f"r{i}" for i in range(1000))
    while isinstance(flow.offer_request(item(next(names)), 0.0, FULL), Parked):
        pass
    for second in range(1, 11):  # two a second leave, as many come
        assert len(going(flow, float(second), slots=2)) == 2
        flow.offer_request(item(next(names), at=float(second)), float(second), FULL)
        flow.offer_request(item(next(names), at=float(second)), float(second), FULL)
    refused = _only(flow.offer_request(item("late", at=10.0), 10.0, FULL))
    assert refused.refusal.retry_after_s == math.ceil(41 / 2)


def test_retry_after_is_the_time_limit_while_nothing_drains() -> None:
    flow = FlowController[str](policy(default_band={"max_requests": 1}, ttl=17))
    flow.offer_request(item("a"), 0.0, FULL)
    assert _only(flow.offer_request(item("b"), 0.0, FULL)).refusal.retry_after_s == 17


def _order(ordering: dict[str, object] | str, items: list[Item[str]]) -> list[str]:
    flow = FlowController[str](policy(default_band={"fairness": "global-strict", "ordering": ordering}, ttl=100))
    for each in items:
        flow.offer_request(each, each.offered_at, FULL)
    return going(flow, 5.0)


def test_fcfs_goes_by_arrival() -> None:
    assert _order("fcfs", [item("a", flow="x"), item("b", flow="y"), item("c", flow="x")]) == ["a", "b", "c"]


def test_edf_goes_by_the_end_of_the_wait() -> None:
    items = [item("none"), item("late", deadline=90.0), item("soon", at=2.0, deadline=30.0)]
    assert _order("edf", items) == ["soon", "late", "none"]


def test_slo_deadline_goes_by_when_the_first_token_is_due() -> None:
    items = [item("none"), item("slow", slo_ttft_s=30.0), item("fast", at=2.0, slo_ttft_s=0.5)]
    assert _order({"use": "slo-deadline", "default": "10s"}, items) == ["fast", "none", "slow"]


def test_weighted_shortest_prefill_goes_by_work_for_its_weight_and_lets_waiting_count() -> None:
    items = [
        item("long", prefill_tokens=9000),
        item("short", at=1.0, prefill_tokens=500),
        item("dear", at=1.0, prefill_tokens=2000, weight=8.0),
    ]
    assert _order({"use": "weighted-shortest-prefill", "aging": 0}, items) == ["dear", "short", "long"]
    assert _order({"use": "weighted-shortest-prefill", "aging": 10000}, items) == ["long", "dear", "short"]


def test_round_robin_gives_each_flow_its_turn() -> None:
    flow = FlowController[str](policy())
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        flow.offer_request(item(name, flow=name[0]), 0.0, FULL)
    assert going(flow, 1.0) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_round_robin_gives_flows_their_turn_that_come_again_after_many_have_left() -> None:
    flow = FlowController[str](policy(default_band={"max_requests": None}))
    for name in range(3 * SLACK):
        flow.offer_request(item(f"{name}", flow=f"{name}"), 0.0, FULL)
        flow.cancel_request(f"{name}", 0.0)
    for name in range(3):
        flow.offer_request(item(f"again {name}", at=1.0, flow=f"{name}"), 1.0, FULL)
    assert going(flow, 2.0) == ["again 0", "again 1", "again 2"]


def test_requests_of_no_tokens_take_a_turn_too() -> None:
    flow = FlowController[str](policy(default_band={"fairness": "least-attained-service"}))
    for flows in "ab":
        for i in range(3):
            flow.offer_request(item(f"{flows}{i}", flow=flows), 0.0, FULL)
    assert sorted(going(flow, 1.0, slots=2)) == ["a0", "b0"]


def test_least_attained_service_shares_tokens_by_weight() -> None:
    fairness = {"use": "least-attained-service", "weights": {"gold": 3.0}}
    flow = FlowController[str](policy(default_band={"fairness": fairness, "max_requests": None}, ttl=1000))
    for i in range(400):
        flow.offer_request(item(f"gold {i}", flow="gold", prefill_tokens=100), 0.0, FULL)
        flow.offer_request(item(f"plain {i}", flow="plain", prefill_tokens=200), 0.0, FULL)
    served = [name.split()[0] for name in going(flow, 1.0, slots=64)]
    gold, plain = served.count("gold") * 100, served.count("plain") * 200
    assert gold / plain == pytest.approx(3.0, rel=0.1)


def test_a_flow_that_rested_has_no_right_to_a_burst() -> None:
    flow = FlowController[str](policy(default_band={"fairness": "least-attained-service"}))
    for i in range(50):
        flow.offer_request(item(f"busy {i}", flow="busy", prefill_tokens=100), 0.0, FULL)
    going(flow, 1.0, slots=40)
    for i in range(10):
        flow.offer_request(item(f"new {i}", at=1.0, flow="new", prefill_tokens=100), 1.0, FULL)
    served = [name.split()[0] for name in going(flow, 2.0, slots=10)]
    assert served.count("new") <= 6


def test_service_long_ago_is_forgotten() -> None:
    fairness = {"use": "least-attained-service", "half_life": "1s"}
    flow = FlowController[str](policy(default_band={"fairness": fairness}, ttl=10**6))
    flow.offer_request(item("first", flow="a", prefill_tokens=10**6), 0.0, FULL)
    going(flow, 0.0)
    for i in range(4):
        flow.offer_request(item(f"a{i}", at=500.0, flow="a", prefill_tokens=10), 500.0, FULL)
        flow.offer_request(item(f"b{i}", at=500.0, flow="b", prefill_tokens=10), 500.0, FULL)
    assert sorted(going(flow, 500.0, slots=4)) == ["a0", "a1", "b0", "b1"]


def test_service_of_others_long_ago_is_no_debt_of_a_flow_that_comes() -> None:
    fairness = {"use": "least-attained-service", "half_life": "1s"}
    flow = FlowController[str](policy(default_band={"fairness": fairness}, ttl=10**6))
    for i in range(2):
        flow.offer_request(item(f"first{i}", flow="a", prefill_tokens=10**6), 0.0, FULL)
    going(flow, 0.0)
    for i in range(3):
        flow.offer_request(item(f"a{i}", at=500.0, flow="a", prefill_tokens=10), 500.0, FULL)
    going(flow, 500.0, slots=1)
    for i in range(2):
        flow.offer_request(item(f"b{i}", at=500.0, flow="b", prefill_tokens=10), 500.0, FULL)
    assert sorted(going(flow, 500.0, slots=2)) != ["a1", "a2"]


def test_waiting_requests_go_on_waiting_under_a_new_policy_in_its_new_order() -> None:
    flow = FlowController[str](policy())
    for name in ("a1", "a2", "b1"):
        flow.offer_request(item(name, flow=name[0]), 0.0, FULL)
    flow.adopt_policy(policy(default_band={"fairness": "global-strict", "max_requests": 1}), 1.0)
    assert isinstance(flow.offer_request(item("c1", at=1.0), 1.0, FULL), Dropped)
    assert going(flow, 2.0) == ["a1", "a2", "b1"]


def test_a_misspelt_plugin_is_named_with_its_place() -> None:
    settings = FlowControl(bands={3: Band(fairness=PluginUse(use="round-robbin"))})
    with pytest.raises(PluginError, match=r"round-robbin.*did you mean 'round-robin'") as refused:
        compile_flow_control(settings, REGISTRIES)
    assert refused.value.path == ("bands", 3, "fairness", "use")


def test_a_weight_that_is_no_weight_is_refused() -> None:
    fairness = {"use": "least-attained-service", "weights": {"a": 0}}
    with pytest.raises(PluginError, match=r"weights\.a") as refused:
        policy(default_band={"fairness": fairness})
    assert refused.value.path[:2] == ("default_band", "fairness")


def test_a_ceiling_below_that_of_a_lower_band_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bands\.0\.ceiling is 0\.9, above 0\.5 of band 2"):
        policy(bands={0: {"ceiling": 0.9}, 2: {"ceiling": 0.5}})
