"""Judges the choices of a routing policy in virtual time: the same judge as the recorder's, whatever the policy."""

from typing import Final, NamedTuple

from pointsman_delay.hindsight import Hindsight
from pointsman_simulator.policy import (
    Arrival,
    Completed,
    ElasticPolicy,
    KvChanged,
    LatePolicy,
    Load,
    Observation,
    Reported,
    RoutingPolicy,
    Started,
)
from pointsman_simulator.prefix_index import BaselinePrefixIndex

_JUDGE_EVERY_MS: Final = 1000.0


class Regret(NamedTuple):
    """Sums over the requests that were judged."""

    judged: int = 0
    regret_us: int = 0
    cost_us: int = 0
    """The cost of the chosen engines."""

    @property
    def mean_ms(self) -> float:
        """The mean of a request; 0 when none was judged."""
        return self.regret_us / self.judged / 1000.0 if self.judged else 0.0


class JudgedPolicy:
    """Passes everything on to `policy`, and looks on."""

    def __init__(self, policy: RoutingPolicy, workers: int, block_size: int) -> None:
        self._policy: Final = policy
        self._names: Final = [f"worker-{index}" for index in range(workers)]
        self._block_size: Final = block_size
        self._index: Final = BaselinePrefixIndex(workers)
        self._hindsight: Final = Hindsight[int]()
        self._arrivals: dict[int, Arrival] = {}
        """Requests that wait for their engine."""
        self._chosen: dict[int, int] = {}
        self._judged_at = 0.0
        self._sums = Regret()

    def observe(self, observation: Observation, now: float) -> None:
        self._policy.observe(observation, now)
        at = observation.at
        match observation:
            case KvChanged():
                self._index.remove_blocks(observation.worker, observation.removed)
                self._index.store_blocks(observation.worker, observation.stored)
            case Started():
                self._hindsight.started(observation.request, at)
            case Completed():
                self._hindsight.ended(observation.request, at, observation.output_tokens)
            case Reported():
                pass
        if at - self._judged_at >= _JUDGE_EVERY_MS:
            self._judged_at = at
            self._judge()

    def choose(self, arrival: Arrival) -> int | None:
        worker = self._policy.choose(arrival)
        if worker is None:
            self._arrivals[arrival.request] = arrival
        else:
            self._decided(arrival, worker, arrival.at)
        return worker

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        if not isinstance(self._policy, LatePolicy):
            return []
        bound = self._policy.bind(now, load)
        for request, worker in bound:
            self._decided(self._arrivals.pop(request), worker, now)
        return bound

    def look_at(self) -> float:
        return self._policy.look_at() if isinstance(self._policy, LatePolicy) else float("inf")

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        if isinstance(self._policy, ElasticPolicy):
            self._policy.change_fleet(worker, present, now)
        self._index.drop_worker(worker)

    def sum_regret(self) -> Regret:
        """The regret of the requests that have ended."""
        self._judge()
        return self._sums

    def _judge(self) -> None:
        judged, regret, cost = self._sums
        for each in self._hindsight.judge():
            chosen = each.costs_us[self._chosen[each.key]]
            judged += 1
            regret += chosen - min(each.costs_us)
            cost += chosen
        self._sums = Regret(judged, regret, cost)

    def _decided(self, arrival: Arrival, worker: int, at: float) -> None:
        self._chosen[arrival.request] = worker
        matched = [blocks * self._block_size for blocks in self._index.match_blocks(arrival.blocks)]
        self._hindsight.add_decision(
            arrival.request, at, arrival.prompt_tokens, self._names, matched=matched, chosen=self._names[worker]
        )
