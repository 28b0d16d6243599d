"""Times to the first token by prompt length, and slowdowns by percentile."""

import pytest

from pointsman_simulator.baselines import RoundRobinBaseline
from pointsman_simulator.curves import PERCENTILES, alone_ms, by_length, slowdowns
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, Outcomes, SimulatedFleet
from pointsman_simulator.trace import TraceRequest

ENGINE = EngineConfig()


def replayed(*prompts: int, apart_ms: float = 10_000.0) -> Outcomes:
    """Requests without common prefixes, on one engine."""
    trace = [
        TraceRequest(number * apart_ms, tokens, 2, list(range(1000 * number, 1000 * number + tokens // 64)))
        for number, tokens in enumerate(prompts)
    ]
    return SimulatedFleet([ENGINE], Lags()).replay_trace(trace, RoundRobinBaseline(1))


@pytest.mark.parametrize("tokens", [640, 8192, 20_480])
def test_a_prompt_alone_on_an_idle_engine_has_a_slowdown_of_one(tokens: int) -> None:
    outcomes = replayed(tokens)
    assert outcomes.requests[0].first_token_at == pytest.approx(alone_ms(tokens, ENGINE))
    assert slowdowns(outcomes, ENGINE) == pytest.approx([1.0] * len(PERCENTILES))


def test_prompts_that_wait_for_each_other_have_greater_slowdowns() -> None:
    together = slowdowns(replayed(*[6400] * 10, apart_ms=0.0), ENGINE)
    assert together[0] >= 1.0
    assert together[-1] > 5.0
    assert list(together) == sorted(together)


def test_each_length_has_the_mean_of_its_requests() -> None:
    short, long = by_length(replayed(*[640] * 10, *[6400] * 12, 64))
    assert (short.tokens, short.requests, short.ttft_ms) == (640.0, 10, pytest.approx(alone_ms(640, ENGINE)))
    assert (long.tokens, long.requests, long.ttft_ms) == (6400.0, 12, pytest.approx(alone_ms(6400, ENGINE)))
