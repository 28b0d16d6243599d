"""Policies of other routers, for comparison."""

import math
import random
from collections import OrderedDict
from collections.abc import Sequence

from pointsman_simulator.policy import Arrival, Completed, ElasticPolicy, KvChanged, Observation, Reported, Started
from pointsman_simulator.prefix_index import BaselinePrefixIndex


class RoundRobinBaseline:
    """Each worker in turn."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._next = 0

    def observe(self, observation: Observation, now: float) -> None:
        pass

    def choose(self, arrival: Arrival) -> int:  # noqa: ARG002 - policies share a signature
        worker, self._next = self._next, (self._next + 1) % self._workers
        return worker


class LeastRequests:
    """The worker with the fewest open requests of our own; ties at random. With `choices`, the better of that
    many random workers (2 is power-of-two)."""

    def __init__(self, workers: int, seed: int = 0, choices: int | None = None) -> None:
        self._open = [0] * workers
        self._choices = choices
        self._random = random.Random(seed)

    def observe(self, observation: Observation, now: float) -> None:
        del now
        if isinstance(observation, Completed):
            self._open[observation.worker] -= 1

    def choose(self, arrival: Arrival) -> int:  # noqa: ARG002 - policies share a signature
        candidates = range(len(self._open))
        if self._choices is not None:
            candidates = self._random.sample(candidates, min(self._choices, len(self._open)))
        worker = _least([self._open[candidate] for candidate in candidates], self._random)
        worker = candidates[worker]
        self._open[worker] += 1
        return worker


class GieDefault(ElasticPolicy):
    """The default profile of the Gateway API Inference Extension: queue 2, kv-utilization 2, prefix 3.

    Queue scores by the distance to the longest queue, KV by the free share, prefix by the share of the prompt's blocks
    that its approximate index (own decisions, LRU per worker) expects there.
    """

    def __init__(self, workers: int, seed: int = 0, lru_capacity: int = 31250) -> None:
        self._prefixes = [OrderedDict[int, None]() for _ in range(workers)]
        self._capacity = lru_capacity
        self._random = random.Random(seed)
        self._gone: set[int] = set()

    def observe(self, observation: Observation, now: float) -> None:
        pass

    def choose(self, arrival: Arrival) -> int:
        load = arrival.load
        here = [waiting for worker, waiting in enumerate(load.waiting) if worker not in self._gone]
        least, most = min(here), max(here)
        matched = self.match_blocks(arrival.blocks)
        scores: list[float] = []
        for worker, waiting in enumerate(load.waiting):
            queue = (most - waiting) / (most - least) if most > least else 1.0
            prefix = matched[worker] / len(arrival.blocks) if arrival.blocks else 0.0
            score = 2 * queue + 2 * (1 - load.kv_usage[worker]) + 3 * prefix
            scores.append(math.inf if worker in self._gone else -score)
        worker = _least(scores, self._random)
        self.expect_blocks(worker, arrival.blocks)
        return worker

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        del now
        note_presence(self._gone, worker, present)
        self._prefixes[worker].clear()

    def match_blocks(self, blocks: Sequence[int]) -> Sequence[int]:
        """How many leading blocks it expects at each worker."""
        found: list[int] = []
        for prefixes in self._prefixes:
            count = 0
            for block in blocks:
                if block not in prefixes:
                    break
                count += 1
            found.append(count)
        return found

    def expect_blocks(self, worker: int, blocks: Sequence[int]) -> None:
        """Expect these blocks at the worker from now on."""
        prefixes = self._prefixes[worker]
        for block in blocks:
            prefixes.pop(block, None)
            prefixes[block] = None
        while len(prefixes) > self._capacity:
            prefixes.popitem(last=False)


class DynamoCostBaseline(ElasticPolicy):
    """NVIDIA Dynamo 1.6's default rule: uncached prefill blocks queued on the worker, plus active blocks."""

    def __init__(
        self,
        workers: int,
        block_size: int = 64,
        seed: int = 0,
        prefill_load_scale: float = 1.0,
        overlap_score_credit: float = 1.0,
    ) -> None:
        self._block_size = block_size
        self._scale = prefill_load_scale
        self._credit = overlap_score_credit
        self._random = random.Random(seed)
        self._index = BaselinePrefixIndex(workers)
        self._active: list[dict[int, int]] = [{} for _ in range(workers)]
        self._prefill_tokens = [0] * workers
        self._booked: dict[int, tuple[int, list[int]]] = {}
        self._gone: set[int] = set()

    def observe(self, observation: Observation, now: float) -> None:
        del now
        worker = observation.worker
        match observation:
            case KvChanged():
                self._index.remove_blocks(worker, observation.removed)
                self._index.store_blocks(worker, observation.stored)
            case Started():
                uncached, blocks = self._booked[observation.request]
                self._prefill_tokens[worker] -= uncached
                self._booked[observation.request] = (0, blocks)
            case Completed():
                _, blocks = self._booked.pop(observation.request)
                active = self._active[worker]
                for block in blocks:
                    count = active[block] - 1
                    if count:
                        active[block] = count
                    else:
                        del active[block]
            case Reported():
                pass

    def choose(self, arrival: Arrival) -> int:
        blocks = arrival.blocks
        overlaps = self._index.match_blocks(blocks)
        costs: list[float] = []
        for worker, active in enumerate(self._active):
            shared = 0
            for block in blocks:
                if block not in active:
                    break
                shared += 1
            prefill = (self._prefill_tokens[worker] + arrival.prompt_tokens) / self._block_size
            prefill -= self._credit * overlaps[worker]
            cost = self._scale * max(prefill, 0.0) + len(active) + len(blocks) - shared
            costs.append(math.inf if worker in self._gone else cost)
        worker = _least(costs, self._random)
        uncached = max(arrival.prompt_tokens - overlaps[worker] * self._block_size, 0)
        self._prefill_tokens[worker] += uncached
        active = self._active[worker]
        for block in blocks:
            active[block] = active.get(block, 0) + 1
        self._booked[arrival.request] = (uncached, blocks)
        return worker

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        del now
        note_presence(self._gone, worker, present)
        self._active[worker].clear()
        self._prefill_tokens[worker] = 0
        self._index.drop_worker(worker)


def note_presence(gone: set[int], worker: int, present: bool) -> None:
    """Keep the engines that are gone."""
    if present:
        gone.discard(worker)
    else:
        gone.add(worker)


def _least(costs: Sequence[float], ties: random.Random) -> int:
    lowest = min(costs)
    best = [index for index, cost in enumerate(costs) if cost == lowest]
    return best[0] if len(best) == 1 else ties.choice(best)
