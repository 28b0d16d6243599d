"""Two pools of different models in one virtual time. The model of each request is chosen first, by one of two ways;
then the pool's own scheduler decides, as in the service."""

import math
from collections.abc import Sequence
from typing import Final

from benchmarks.joint_choice.world import MODELS, Expense
from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import Blob
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_core.config import Config, SchedulingPolicy
from pointsman_core.joint_choice import rank_models
from pointsman_metrics_collector.domain.models import ModelWindow
from pointsman_metrics_collector.domain.snapshot import KV_THRESHOLD, QUEUE_THRESHOLD
from pointsman_model_selector.configuration import plugins
from pointsman_model_selector.domain.selector import compile_selectors
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.selecting import ModelQuestion, ModelStates
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_scheduler.joint_choice import time_in_pool
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.one_scheduler import OneScheduler, hashes
from pointsman_simulator.policy import Arrival, Completed, KvChanged, Load, Observation, Reported, Started

STATISTICS_MS: Final = 1000.0
"""How often the selector gets statistics of models and snapshots of pools."""


class TwoPools:
    """A routing policy over the engines of both pools; the small model's come first."""

    def __init__(self, config: Config, selector: str, engine: EngineConfig, workers: Sequence[int]) -> None:
        """`workers`: engines of each pool."""
        self._selector = compile_selectors(config, plugins())[selector]
        self._first_row = (0, workers[0])
        self._pools = [
            OneScheduler(
                name="scheduler", kv_blocks=[engine.num_blocks] * count, settings=SchedulingPolicy(), engine=engine,
                loras=(), kv_events=True,
            )
            for count in workers
        ]  # fmt: skip
        self._block_tokens = engine.block_size
        self._states = ModelStates()
        self._windows = {name: ModelWindow() for name in MODELS}
        self._told_at = -math.inf
        self._sequence = 0
        self._now = 0.0
        self._sent: dict[int, float] = {}
        self._began: dict[int, tuple[float, int]] = {}
        self._first: dict[int, float] = {}
        self.model: Final[dict[int, int]] = {}
        """Request → position of its model."""
        self.expense: Final = Expense()

    def observe(self, observation: Observation, now: float) -> None:
        """Pass the pool's scheduler what its engine did."""
        self._now = now
        pool = int(observation.worker >= self._first_row[1])
        own = _of_pool(observation, observation.worker - self._first_row[pool])
        key, sent = ("", ""), 0.0
        if not isinstance(observation, KvChanged | Reported):
            key, sent = ("", str(observation.request)), self._sent[observation.request]
        self._pools[pool].receive_observation(own, key, sent, now)
        if isinstance(observation, Started):
            self._first[observation.request] = observation.at
        if isinstance(observation, Completed):
            self._completed(observation, pool, now)

    def choose(self, arrival: Arrival) -> int | None:
        """Choose the model, then let its pool decide."""
        self._now = arrival.at
        self._hear(arrival.load, arrival.at)
        self._tell(arrival)
        pool = self._model_of(arrival)
        self.model[arrival.request] = pool
        self._began[arrival.request] = arrival.at, arrival.prompt_tokens
        blocks = hashes(arrival.blocks)
        facts = RequestFacts(
            api="",
            stream=True,
            prompt_tokens=arrival.prompt_tokens,
            tokens_exact=True,
            block_tokens=self._block_tokens,
            blocks_precise=True,
        )
        request = ScheduleRequest(request_id=str(arrival.request), facts=facts, model="model", blocks=blocks)
        outcome = self._pools[pool].decide(request, arrival.at, arrival.request)
        return None if isinstance(outcome, Postponed) else self._row(pool, outcome, arrival.request)

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """The requests whose wait is over, of both pools."""
        self._now = now
        self._hear(load, now)
        leaving: list[tuple[int, int]] = []
        for number, scheduler in enumerate(self._pools):
            for bound in scheduler.pool.bind(now / 1000.0):
                request = int(bound.request.request_id)
                outcome = scheduler.decide(bound.request, now, request)
                if not isinstance(outcome, Scheduled):
                    raise AssertionError(f"request {request} waits twice")  # noqa: TRY004 - it can't be
                leaving.append((request, self._row(number, outcome, request)))
        return leaving

    def look_at(self) -> float:
        """When something that waits may have to go."""
        looks = [each.pool.look_at(self._now / 1000.0) for each in self._pools]
        return min([at * 1000.0 for at in looks if at is not None], default=math.inf)

    def _row(self, pool: int, outcome: Scheduled, request: int) -> int:
        self._sent[request] = self._now
        return self._first_row[pool] + self._pools[pool].chosen_row(outcome)

    def _hear(self, load: Load, now: float) -> None:
        for pool, scheduler in enumerate(self._pools):
            rows = slice(self._first_row[pool], None if pool else self._first_row[1])
            scheduler.hear(
                Load(load.running[rows], load.waiting[rows], load.kv_usage[rows], load.running_loras[rows]), now
            )

    def _model_of(self, arrival: Arrival) -> int:
        facts = RequestFacts(
            api="chat.completions", stream=True, prompt_tokens=arrival.prompt_tokens, block_tokens=self._block_tokens,
            blocks=Blob(hashes(arrival.blocks).astype("<u8").tobytes()),
        )  # fmt: skip
        journey = Journey(
            request_id=str(arrival.request), edge="", received_ms=0, deadline_ms=0, revision=1, request=facts,
            model="auto",
        )  # fmt: skip
        question = ModelQuestion(journey, self._states, arrival.at / 1000.0, round(arrival.at))
        selected = self._selector.select_model(question)
        if selected.choice is None:
            return MODELS.index(selected.model.name)
        open_to = selected.choice
        times = [
            time_in_pool(
                self._pools[position].pool,
                self._pools[position].policy,
                option,
                # The simulated engines of both pools know a prompt's blocks by the same names.
                facts,
                arrival.at / 1000.0,
            )
            for option in open_to.options
            for position in (MODELS.index(option.name),)
        ]
        ranked = rank_models(open_to, arrival.prompt_tokens, 1, times)
        return MODELS.index(open_to.options[ranked.order[0]].name)

    def _completed(self, end: Completed, pool: int, now: float) -> None:
        name = MODELS[pool]
        arrived, prompt = self._began.pop(end.request)
        usage = Usage(prompt_tokens=prompt, completion_tokens=end.output_tokens)
        self.expense.add(name, prompt, end.output_tokens)
        self._windows[name].add_completion(
            ResponseCompleted(
                request_id="", source="", sequence=0, at_ms=0, pool=name, status=200, outcome="ok", usage=usage,
                ttft_ms=self._first.pop(end.request, end.at) - arrived, duration_ms=end.at - arrived, stream=True,
            ),
            now / 1000.0,
        )  # fmt: skip

    def _tell(self, arrival: Arrival) -> None:
        """The snapshots that the metrics-collector publishes."""
        if arrival.at - self._told_at < STATISTICS_MS:
            return
        self._told_at = arrival.at
        self._sequence += 1
        for pool, name in enumerate(MODELS):
            statistics = self._windows[name].build_statistics(
                name, arrival.at / 1000.0, source="c", sequence=self._sequence, at_ms=self._sequence
            )
            self._states.model_changed(statistics)
            rows = slice(self._first_row[pool], None if pool else self._first_row[1])
            waiting, kv_usage = arrival.load.waiting[rows], arrival.load.kv_usage[rows]
            fullness = [
                min(1.0, max(queue / QUEUE_THRESHOLD, kv / KV_THRESHOLD))
                for queue, kv in zip(waiting, kv_usage, strict=True)
            ]
            self._states.pool_changed(_snapshot(name, fullness, self._sequence), arrival.at / 1000.0)


def _snapshot(pool: str, fullness: Sequence[float], sequence: int) -> PoolSnapshot:
    return PoolSnapshot(
        pool=pool, source="c", sequence=sequence, at_ms=sequence, models=(pool,),
        saturation=sum(fullness) / len(fullness), workers=(),
    )  # fmt: skip


def _of_pool(observation: Observation, row: int) -> Observation:
    match observation:
        case Started():
            return Started(observation.request, row, observation.at)
        case Completed():
            return Completed(
                observation.request, row, observation.at, observation.output_tokens, observation.cached_tokens
            )
        case KvChanged():
            return KvChanged(row, observation.at, observation.stored, observation.removed)
        case Reported():
            return Reported(row, observation.at, observation.report)
