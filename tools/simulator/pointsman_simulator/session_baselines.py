"""Rules of other routers for conversations, for comparison."""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from pointsman_simulator.baselines import GieDefault, note_presence
from pointsman_simulator.policy import Arrival, ElasticPolicy, KvChanged, Observation, RoutingPolicy
from pointsman_simulator.prefix_index import BaselinePrefixIndex

BOUND_MS: Final = 300_000.0
"""How long llm-d keeps a session's endpoint after its last request (`evictionTtlSeconds` of session-affinity)."""


class SessionHashBaseline(ElasticPolicy):
    """Every request of a session goes to one engine, which a hash of its name chooses; others to any engine."""

    def __init__(self, workers: int, seed: int = 0) -> None:
        self._workers = list(range(workers))
        self._gone: set[int] = set()
        self._random = random.Random(seed)

    def observe(self, observation: Observation, now: float) -> None:
        pass

    def choose(self, arrival: Arrival) -> int:
        here = [worker for worker in self._workers if worker not in self._gone]
        if arrival.session is None:
            return self._random.choice(here)
        return here[zlib.crc32(arrival.session.encode()) % len(here)]

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        del now
        note_presence(self._gone, worker, present)


class GiePreciseBaseline(GieDefault):
    """llm-d's precise prefix cache: the default profile, with the engines' own KV events in place of its guess."""

    def __init__(self, workers: int, seed: int = 0) -> None:
        super().__init__(workers, seed)
        self._index = BaselinePrefixIndex(workers)

    def observe(self, observation: Observation, now: float) -> None:
        del now
        if isinstance(observation, KvChanged):
            self._index.remove_blocks(observation.worker, observation.removed)
            self._index.store_blocks(observation.worker, observation.stored)

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        super().change_fleet(worker, present, now)
        self._index.drop_worker(worker)

    def match_blocks(self, blocks: Sequence[int]) -> Sequence[int]:
        return self._index.match_blocks(blocks)

    def expect_blocks(self, worker: int, blocks: Sequence[int]) -> None:
        """Only the engines say what they hold."""


class SessionAffinityBaseline(ElasticPolicy):
    """llm-d's session-affinity filter: a session stays at the engine of its last request, a new one goes where
    `first` chooses."""

    def __init__(self, first: Callable[[], RoutingPolicy]) -> None:
        self._first = first()
        self._bound: dict[str, tuple[int, float]] = {}

    def observe(self, observation: Observation, now: float) -> None:
        self._first.observe(observation, now)

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        if isinstance(self._first, ElasticPolicy):
            self._first.change_fleet(worker, present, now)
        self._bound = {session: bound for session, bound in self._bound.items() if present or bound[0] != worker}

    def choose(self, arrival: Arrival) -> int | None:
        chosen = self._first.choose(arrival)
        if arrival.session is None or chosen is None:
            return chosen
        worker, until = self._bound.get(arrival.session, (chosen, 0.0))
        worker = worker if arrival.at <= until else chosen
        self._bound[arrival.session] = (worker, arrival.at + BOUND_MS)
        return worker
