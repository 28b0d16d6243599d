"""The scheduling policy that everybody gets who configures none."""

from collections import Counter

import numpy as np
import pytest

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.scheduler_bench import Bench


class Pool:
    """Eight idle engines under the default policy; no signal comes after the first."""

    def __init__(self, seed: int, trusted: bool) -> None:
        self.policy = compile_policy("default", SchedulingPolicy(), registries())
        self.pool = PoolScheduler("pool", "scheduler", PrefixIndex())
        self.pool.use([self.policy])
        self.seed = seed
        for index in range(8):
            name = f"w{index}"
            self.pool.register(
                WorkerRegistration(
                    worker=name, pool="pool", url=f"http://{name}", block_tokens=64, kv_blocks=16384, boot_id="1",
                    agent="a", version="0", registered_ms=0,
                ),
                0.0,
            )  # fmt: skip
            self.pool.hear(WorkerLoad(worker=name, pool="pool", boot_id="1", sequence=1, at_ms=0), 0.0)
        if trusted:
            (delay,) = [each for each in self.policy.producers if isinstance(each, DelayPrediction)]
            rng = np.random.default_rng(0)
            for _ in range(200):
                tokens, batch = rng.uniform(0.0, 8.0), float(rng.integers(1, 50))
                passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, 0.01 * batch])
                delay.estimator.best.model.learn_pass(passed, 22.0 + 15.0 * tokens + 0.4 * tokens**2 + 0.5 * batch, 5.0)
            assert delay.estimator.best.model.is_trusted

    def send(self, count: int, tokens: int, blocks: list[int]) -> Counter[str]:
        chosen: Counter[str] = Counter()
        for index in range(count):
            request = ScheduleRequest(
                f"r{index}",
                RequestFacts(api="", stream=True, prompt_tokens=tokens),
                blocks=np.array(blocks, dtype=np.uint64),
            )
            outcome = self.pool.decide(request, 0.5 + index * 1e-5, self.seed * 1000 + index, self.policy)
            if isinstance(outcome, Scheduled):
                chosen[outcome.endpoints[0].name] += 1
        for turn in range(2000):  # engines come to those that wait
            now = 0.5 + turn * 0.01
            for bound in self.pool.bind(now):
                outcome = self.pool.decide(bound.request, now, self.seed * 1000 + turn, self.policy)
                assert isinstance(outcome, Scheduled)
                chosen[outcome.endpoints[0].name] += 1
        assert chosen.total() == count
        return chosen


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_simultaneous_short_prompts_spread_over_idle_engines(seed: int, trusted: bool) -> None:
    chosen = Pool(seed, trusted).send(64, 32, [])
    assert max(chosen.values()) / 8 <= 1.25


@pytest.mark.requirement("S2-21")
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_burst_that_shares_a_new_prefix_computes_it_on_at_most_two_engines(seed: int, trusted: bool) -> None:
    assert len(Pool(seed, trusted).send(16, 8000, list(range(1, 126)))) <= 2


@pytest.mark.requirement("S3-14")
def test_a_request_for_an_adapter_goes_where_it_is_loaded_though_others_have_less_to_do() -> None:
    bench = Bench()
    for name, adapter in (("w0", "sql"), ("w1", "law"), ("w2", "law")):
        bench.join(name, loras=("sql", "law"))
        bench.hear(name, running_loras=(adapter,), max_loras=1)
    for _ in range(6):
        bench.place(bench.request(prompt_tokens=4000), "w0")
    assert {bench.chosen(bench.request(lora="sql"), seed) for seed in range(5)} == {"w0"}
    assert bench.chosen(bench.request()) != "w0"


def test_a_hot_adapter_spreads_over_engines_that_have_room_for_it() -> None:
    bench = Bench()
    for name in ("w0", "w1", "w2"):
        bench.join(name, loras=("sql",))
        bench.hear(name, running_loras=("sql",) if name == "w0" else (), max_loras=2)
    chosen = Counter(bench.chosen(bench.request(lora="sql", prompt_tokens=4000)) for _ in range(12))
    assert len(chosen) == 3
