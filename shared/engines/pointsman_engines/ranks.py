"""The data-parallel ranks of one engine as workers of their own. Pure.

vLLM labels its metrics with a rank's number among those of all servers and publishes its KV events at the first port
plus that number; a request names the rank by its place among those of the server that it is sent to (vLLM 0.32,
`v1/engine/input_processor.py`, `distributed/kv_events.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman_contracts.worker import rank_name
from pointsman_engines.report import ReportedWorker
from pointsman_engines.status import EngineFacts, EngineStatus

MOST_RANKS: Final = 1024
"""Ranks that the metrics of one engine may name."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of an engine that has several."""

    place: int
    """By which a request asks for it."""
    label: str
    """The label of its samples among the engine's metrics: its number among the ranks of all servers."""

    @property
    def number(self) -> int:
        """Its number among the ranks of all servers."""
        return int(self.label) if self.label.isascii() and self.label.isdecimal() else self.place


def ranks_of(facts: EngineFacts | None, configured: int | None) -> tuple[Rank, ...]:
    """The ranks that are workers of their own; empty for an engine that is one worker. `configured`: their number, or
    None for as many as its metrics name."""
    labels: Sequence[str] = () if facts is None else facts.cache.rank_labels
    count = len(labels) if configured is None else configured
    if not 1 < count <= MOST_RANKS:
        return ()
    return tuple([Rank(place, labels[place] if place < len(labels) else str(place)) for place in range(count)])


def rank_worker(worker: ReportedWorker, rank: Rank, ranks: int) -> ReportedWorker:
    """The rank as a worker, by the name that it has in its pool."""
    return replace(
        worker, worker=rank_name(worker.worker, rank.number), server=worker.worker, rank=rank.place, ranks=ranks
    )


def disputed(facts: EngineFacts, configured: int | None) -> str:
    """In words, that the engine's metrics name another number of ranks than was configured; empty when they don't."""
    named = len(facts.cache.rank_labels)
    if configured in (None, 1) or not named or named == configured:
        return ""
    return f"{configured} ranks are configured, and the engine's metrics name {named}"


class RankStatus:
    """The status of one rank, made of its engine's."""

    def __init__(self, rank: Rank, ranks: int) -> None:
        self._rank: Final = rank
        self._ranks: Final = ranks
        self._whole: EngineFacts | None = None
        self._own: EngineFacts | None = None

    def narrow(self, status: EngineStatus) -> EngineStatus:
        """Health, life and faults are the engine's; the load is the rank's, and unknown where the engine doesn't tell
        it. Equal facts give the same object."""
        if status.facts is not self._whole:
            self._whole = facts = status.facts
            self._own = None if facts is None else replace(facts, cache=facts.cache.of_one_rank(self._ranks))
        whole, unknown = status.reading, status.load_unknown
        reading = None if whole is None or whole.by_rank is None else whole.by_rank.get(self._rank.label)
        if reading is None and whole is not None and not unknown:
            unknown = f"the engine's metrics name no load of rank {self._rank.label}"
        asleep = status.asleep if reading is None else reading.asleep
        return replace(status, facts=self._own, reading=reading, load_unknown=unknown, asleep=asleep)
