"""Waiting requests, beside answers that are promised a time between tokens."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.journey import RequestFacts
from pointsman_delay import PassSizeSearch
from pointsman_delay.outlook import Outlook
from pointsman_delay.token_pace import TokenPace
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.late_binding.slack import place_by_slack
from pointsman_scheduler.domain.late_binding.unbound import Unbound
from pointsman_scheduler.domain.outcome import Postponed
from pointsman_testing.one_engine import PREFILL_MS, TOKEN_MS, OneEngine, teach_passes


def waiting(tokens: int, engines: int, itl_ms: float | None = None, number: int = 0) -> Unbound:
    facts = RequestFacts(
        api="", stream=True, prompt_tokens=tokens, slo_ttft_ms=5000.0, slo_itl_ms=itl_ms, slo_class="chat"
    )
    request = ScheduleRequest(request_id=str(number), facts=facts)
    each = Unbound(request=request, since=0.0, rows=None, row=0, uses=0.0, uncached=float(tokens), latest=5000.0)
    each.match(np.zeros(engines))
    return each


class Pool:
    """Two engines."""

    def __init__(self) -> None:
        self.search = PassSizeSearch(8192, 16.0)
        teach_passes(self.search.best.model)
        self.search.lay_out([(life, 1e9) for life in range(2)])
        self.sent = 0

    def write(self, life: int, answers: int, prompt: int, itl: float | None = None) -> None:
        """So many answers are being written by an engine."""
        for _ in range(answers):
            self.sent += 1
            self.search.pace_prompts(life, self.sent, itl, prompt, 0, 0.0)
            self.search.sent(life, self.sent, 0.0, prompt, prompt - 1)
            self.search.started(self.sent, 0.0)

    def place(self, requests: Sequence[Unbound], paces: Sequence[TokenPace | None] | None = None) -> None:
        outlook = Outlook(self.search.best, 0.0)
        place_by_slack(requests, outlook, 0.0, {}, self.search.list_paces() if paces is None else paces)


def test_a_request_goes_where_its_tokens_come_in_time_though_it_costs_more_there() -> None:
    pool = Pool()
    pool.write(0, 40, 20_000)
    step = pool.search.step_with(0)
    pool.write(1, 1, 1000)
    held = np.array([29_900.0, 0.0])
    free, held_to = waiting(30_000, 2), waiting(30_000, 2, itl_ms=1.05 * step)
    for each in (free, held_to):
        each.match(held)
        pool.place([each])
    assert (free.row, held_to.row) == (0, 1)
    assert not held_to.left_out


def test_a_request_breaks_no_promise_there_while_another_engine_has_room() -> None:
    pool = Pool()
    pool.write(0, 40, 20_000)
    pool.write(0, 1, 1000, itl=1.32 * pool.search.step_with(0))
    each = waiting(30_000, 2)
    each.match(np.array([29_900.0, 0.0]))
    pool.place([each], [None, None])
    assert each.row == 0
    pool.place([each])
    assert (each.row, each.left_out) == (1, False)


def test_a_request_that_would_break_a_promise_wherever_it_goes_is_left_out() -> None:
    pool = Pool()
    for life in range(2):
        pool.write(life, 40, 20_000)
        pool.write(life, 1, 1000, itl=1.32 * pool.search.step_with(life))
    each = waiting(30_000, 2)
    pool.place([each])
    assert each.left_out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(200, 8000), min_size=1, max_size=7))
def test_without_a_promised_time_between_tokens_the_plan_is_the_same(prompts: list[int]) -> None:
    plans: list[list[tuple[int, bool]]] = []
    for paces in ((), (None, None)):
        pool = Pool()
        pool.write(0, 3, 2000)
        requests = [waiting(tokens, 2, number=number) for number, tokens in enumerate(prompts)]
        pool.place(requests, paces)
        plans.append([(each.row, each.left_out) for each in requests])
    assert plans[0] == plans[1]


class Engine(OneEngine):
    """Notes when requests go to it."""

    def __init__(self) -> None:
        super().__init__({})
        self.went: dict[str, float] = {}

    def take_bound(self, bound: Bound) -> None:
        super().take_bound(bound)
        self.went[bound.request.request_id] = self.bench.now

    def offer(self, tokens: int, itl_ms: float | None = None) -> str:
        request = self.bench.request(
            prompt_tokens=tokens, slo_ttft_ms=60_000.0, slo_itl_ms=itl_ms, slo_class="chat", max_output_tokens=500
        )
        if not isinstance(self.bench.pool.decide(request, self.bench.now, 1, self.bench.policy), Postponed):
            self.sent.append(request)
            self.went[request.request_id] = self.bench.now
        self.work()
        return request.request_id


@pytest.mark.parametrize("itl_ms", [None, 40.0])
def test_prompts_wait_until_an_engine_has_caught_up_if_its_answers_are_promised_a_time(itl_ms: float | None) -> None:
    engine = Engine()
    answer = engine.bench.request(
        prompt_tokens=100, slo_ttft_ms=60_000.0, slo_itl_ms=itl_ms, slo_class="chat", max_output_tokens=500
    )
    engine.bench.pool.decide(answer, engine.bench.now, 1, engine.bench.policy)
    engine.bench.pool.books.started(answer.key, "a", 5.0, engine.bench.now)
    first = engine.offer(8000)
    engine.run(engine.bench.now + 0.05)
    second = engine.offer(8000)
    engine.run(engine.bench.now + 3.0)
    took, apart = (PREFILL_MS + 8000 * TOKEN_MS) / 1000.0, engine.went[second] - engine.went[first]
    assert apart >= took * 1.2 if itl_ms else apart <= took * 1.1
