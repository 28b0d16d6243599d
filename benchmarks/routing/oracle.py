"""The default policy with what it can't have: pass times known before the first request, and no delay of hearing.

Its pass model is taught from the engine's own timing: within 0.1 % for prompts, and the best straight line through the
decode steps, whose curve the model can't follow. First tokens, ends, KV events and load reports are known at once. It
still doesn't know requests to come and lengths of answers, and another rule could do better.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_core.config import SchedulingPolicy
from pointsman_delay.pass_model import FEATURES, PassModel
from pointsman_simulator.comparison import Compared, Setting
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags, SimulatedFleet
from pointsman_simulator.judged import JudgedPolicy
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.summary import summarize
from pointsman_simulator.trace import TraceRequest

NAME: Final = "oracle"
_LESSONS: Final = 2000
_NO_LAGS: Final = Lags(response=0.0, kv=0.0, load=0.0, dispatch=0.0, peer=0.0)


def run(trace: Sequence[TraceRequest], workers: int, seed: int = 0) -> Compared:
    """The figures of one run."""
    setting = Setting(workers, lags=_NO_LAGS)
    policy = SchedulerPolicy(workers, SchedulingPolicy(), setting.engine, seed)
    for scheduler in policy.schedulers:
        for compiled in scheduler.pool.policies:
            if compiled.late_binding is not None:
                teach(compiled.late_binding.delays.best.model, setting.engine)
    fleet = SimulatedFleet(setting.list_engines, setting.lags)
    judged = JudgedPolicy(policy, workers, setting.engine.block_size)
    return Compared(NAME, (summarize(fleet.replay_trace(trace, judged), workers, judged.sum_regret()),))


def teach(model: PassModel, engine: EngineConfig) -> None:
    """Learn from passes of every size, each as long as the engine's timing has it."""
    draw, capacity = np.random.default_rng(0), engine.num_blocks * engine.block_size
    timing = engine.timing
    for number in range(_LESSONS):
        prompt = int(draw.integers(1, engine.max_num_batched_tokens)) if number % 3 else 0
        batch = int(draw.integers(1, 64)) if number % 3 != 1 else 0
        context = batch * int(draw.integers(500, 10_000))
        took = timing.prefill_ms(prompt) if prompt else 0.0
        took += timing.decode_ms(context / capacity, batch) if batch else 0.0
        kilo = prompt * 1e-3
        features = np.zeros(FEATURES)
        features[:] = (prompt > 0, kilo, kilo**2, 0.0, batch > 0, batch, context * 1e-6)
        model.learn_pass(features, took, 0.1)
