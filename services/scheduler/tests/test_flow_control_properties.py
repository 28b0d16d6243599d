"""In any order of events: nothing is lost, nothing is late, no limit is passed, no request is overtaken."""

import math
from collections.abc import Hashable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pointsman_core.config.flow_control import FlowControl
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
from pointsman_scheduler.plugins.flow_control import flow_registries

FAIRNESS = st.sampled_from(["round-robin", "global-strict", "least-attained-service", "program"])
REGISTRIES = flow_registries()
ROUNDING = 1e-9
"""Seconds by which a difference of two sums of times may be off."""
ORDERING = st.sampled_from(["fcfs", "edf", "slo-deadline", "weighted-shortest-prefill"])


@st.composite
def policies(draw: st.DrawFn) -> FlowPolicy:
    limit = st.none() | st.integers(0, 6)

    def band(ceiling: float) -> dict[str, object]:
        return {
            "max_requests": draw(limit), "max_bytes": draw(st.none() | st.integers(0, 60)), "ceiling": ceiling,
            "fairness": draw(FAIRNESS), "ordering": draw(ORDERING),
        }  # fmt: skip

    low, high = sorted([draw(st.sampled_from([0.5, 1.0])), draw(st.sampled_from([0.5, 1.0]))])
    document = {
        "bands": {1: band(low), 2: band(high)}, "default_band": band(1.0), "negative_band": band(0.5),
        "max_requests": draw(st.none() | st.integers(0, 12)), "max_bytes": draw(st.none() | st.integers(0, 120)),
        "ttl": draw(st.sampled_from([3.0, 10.0])), "no_endpoint_ttl": draw(st.sampled_from([None, 0.0, 1.0, 30.0])),
    }  # fmt: skip
    return compile_flow_control(FlowControl.model_validate(document), REGISTRIES)


class Pool:
    """A pool with a number of free places; each dispatch takes one."""

    def __init__(self) -> None:
        self.endpoints = 2
        self.free = 0

    def gauge(self) -> Capacity:
        return Capacity(self.endpoints, 1.0 if self.free <= 0 else 0.7 if self.free <= 2 else 0.2)


class FlowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Pool()
        self.parked: dict[Hashable, Item[int]] = {}
        self.ended: dict[Hashable, str] = {}
        self.names = 0

    @initialize(policy=policies())
    def start(self, policy: FlowPolicy) -> None:
        self.policy = policy
        self.flow = FlowController[int](policy)

    def end(self, outcome: Dispatch[int] | Dropped[int]) -> None:
        """Book one outcome, and check what must hold of it."""
        item = outcome.item
        assert item.request not in self.ended, "a request ended twice"
        assert outcome.queued_s == self.now - item.offered_at
        self.parked.pop(item.request, None)
        self.ended[item.request] = type(outcome).__name__
        if isinstance(outcome, Dropped):
            assert outcome.refusal.retry_after_s is not None
            assert outcome.refusal.retry_after_s >= 1
            if outcome.drop in (Drop.EXPIRED, Drop.NO_ENDPOINTS) and outcome.queued_s > 0:
                assert outcome.queued_s >= min(self.policy.settings.ttl, self.policy.no_endpoint_ttl) - ROUNDING
            return
        capacity = self.pool.gauge()
        assert capacity.endpoints > 0
        assert capacity.saturation < self.policy.policy_for(item.priority).settings.ceiling
        assert self.now < item.deadline
        assert outcome.queued_s < max(self.policy.settings.ttl, self.policy.no_endpoint_ttl) + ROUNDING
        assert all(other.priority <= item.priority for other in self.parked.values()), "overtook a higher band"
        self.pool.free -= 1

    @rule(
        priority=st.integers(-1, 3),
        flow=st.sampled_from("xyz"),
        size=st.integers(0, 30),
        tokens=st.integers(0, 1000),
        patience=st.none() | st.sampled_from([0.0, 0.5, 2.0, 8.0]),
        slo=st.none() | st.floats(0, 5),
    )
    def offer(
        self, priority: int, flow: str, size: int, tokens: int, patience: float | None, slo: float | None
    ) -> None:
        self.names += 1
        item = Item(
            f"r{self.names}", self.now, payload=self.names, flow=flow, priority=priority, size=size,
            prefill_tokens=tokens, slo_ttft_s=slo, deadline=math.inf if patience is None else self.now + patience,
        )  # fmt: skip
        outcome = self.flow.offer_request(item, self.now, self.pool.gauge())
        if isinstance(outcome, Parked):
            self.parked[item.request] = item
        else:
            self.end(outcome)

    @rule(which=st.integers(0, 30))
    def offer_again(self, which: int) -> None:
        if self.parked:
            item = list(self.parked.values())[which % len(self.parked)]
            outcome = self.flow.offer_request(item, self.now, self.pool.gauge())
            # A displaced request waits no more, though its rejection isn't returned yet.
            if not isinstance(outcome, Parked):
                self.end(outcome)

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        if self.parked:
            outcome = self.flow.cancel_request(list(self.parked)[which % len(self.parked)], self.now)
            if outcome is not None:
                self.end(outcome)

    @rule(free=st.integers(0, 6))
    def wake(self, free: int) -> None:
        self.pool.free = free
        for outcome in self.flow.wake_requests(self.now, self.pool.gauge):
            self.end(outcome)
        if self.parked and self.pool.endpoints:
            highest = max(item.priority for item in self.parked.values())
            ceiling = self.policy.policy_for(highest).settings.ceiling
            assert self.pool.gauge().saturation >= ceiling, "could have gone and didn't"

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0]))
    def pass_time(self, seconds: float) -> None:
        """As the owner would: sleeps until it is due, and wakes then."""
        until = self.now + seconds
        self.pool.free = 0
        while (due := self.flow.next_wake_at(self.now)) is not None and due <= until:
            self.now = max(due, self.now)
            for outcome in self.flow.wake_requests(self.now, self.pool.gauge):
                self.end(outcome)
            if due == until:
                break
        self.now = until

    @rule(endpoints=st.integers(0, 2))
    def change_endpoints(self, endpoints: int) -> None:
        self.pool.endpoints = endpoints
        self.pool.free = 0
        for outcome in self.flow.wake_requests(self.now, self.pool.gauge):
            self.end(outcome)

    @rule(policy=policies())
    def adopt(self, policy: FlowPolicy) -> None:
        # Budgets are those in force when a wait ends, so what the checks compare with follows.
        kept = FlowControl.model_validate(
            policy.settings.model_dump()
            | {"ttl": self.policy.settings.ttl, "no_endpoint_ttl": self.policy.no_endpoint_ttl}
        )
        self.policy = compile_flow_control(kept, REGISTRIES)
        self.before = self.flow.measure_queues()
        self.flow.adopt_policy(self.policy, self.now)
        assert self.flow.measure_queues()[:2] == self.before[:2]
        self.limits_may_be_passed = True

    @invariant()
    def books_are_right(self) -> None:
        figures = self.flow.measure_queues()
        told = set(self.flow._displaced)  # pyright: ignore[reportPrivateUsage]
        waiting = {name: item for name, item in self.parked.items() if name not in told}
        assert figures.requests == len(waiting) == len(self.flow.waiting)
        assert figures.bytes == sum(item.size for item in waiting.values())
        assert sum(band[0] for band in figures.by_band.values()) == figures.requests
        if getattr(self, "limits_may_be_passed", False):
            return
        policy = self.policy
        assert policy.settings.max_requests is None or figures.requests <= policy.settings.max_requests
        assert policy.settings.max_bytes is None or figures.bytes <= policy.settings.max_bytes
        for priority, (requests, size, _) in figures.by_band.items():
            band = policy.policy_for(priority)
            assert band.settings.max_requests is None or requests <= band.settings.max_requests
            assert band.settings.max_bytes is None or size <= band.settings.max_bytes

    def teardown(self) -> None:
        for outcome in self.flow.shut_down(self.now):
            self.end(outcome)
        assert not self.parked, "a request was lost"
        assert len(self.ended) == self.names


TestFlow = FlowMachine.TestCase
TestFlow.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def _served(fairness: str, rates: dict[str, int], seconds: int) -> dict[str, int]:
    """Requests served in a pool that takes 60 each second, offered `rates` by flow."""
    document = {"default_band": {"fairness": fairness, "max_requests": None}, "max_requests": None, "ttl": 5}
    flow = FlowController[str](compile_flow_control(FlowControl.model_validate(document), REGISTRIES))
    pool = Pool()
    served = dict.fromkeys(rates, 0)
    for tick in range(seconds * 10):
        now = tick / 10
        for tenant, rate in rates.items():
            for i in range(rate // 10):
                item = Item(f"{tenant}/{tick}/{i}", now, payload="", flow=tenant, prefill_tokens=100 + i)
                flow.offer_request(item, now, Capacity(1, 1.0))
        pool.free = 6
        for outcome in flow.wake_requests(now, pool.gauge):
            if isinstance(outcome, Dispatch):
                pool.free -= 1
                served[outcome.item.flow] += 1
    return served


def _jain(shares: list[int]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def test_three_equal_tenants_get_equal_shares_however_much_each_of_them_asks_for() -> None:
    for fairness in ("round-robin", "least-attained-service"):
        served = _served(fairness, {"modest": 40, "greedy": 400, "busy": 120}, seconds=60)
        assert _jain(list(served.values())) >= 0.95, (fairness, served)


def test_a_tenant_that_asks_for_less_than_its_share_gets_all_of_it() -> None:
    served = _served("round-robin", {"modest": 10, "greedy": 400}, seconds=60)
    assert served["modest"] >= 0.99 * 10 * 60
