"""Judges the events that are recorded, and publishes the verdicts. Sums are made of what comes back in the stream."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.regret import RequestsJudged
from pointsman_recorder.adapters.metrics import RecorderMetrics
from pointsman_recorder.domain.entry import RecordedEvent
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log

if TYPE_CHECKING:
    from pointsman_recorder.domain.judge import Judge, Verdicts

_PIECE: Final = 32
"""Events that are judged before other work of the process has its turn."""

_log = Log("judging")


class Judging:
    """One judge of all pools."""

    def __init__(self, judge: "Judge", bus: Bus, name: str, metrics: RecorderMetrics) -> None:
        """`name`: what its judgements are known by, over the lives of the process."""
        self._judge: Final = judge
        self._bus: Final = bus
        self._name: Final = name
        self._metrics: Final = metrics
        self._sequences: dict[str, int] = {}
        self._malformed = False

    async def judge_events(self, entries: Sequence[RecordedEvent]) -> None:
        """Judge events, in the order of their stream."""
        for start in range(0, len(entries), _PIECE):
            for entry in entries[start : start + _PIECE]:
                try:
                    self._judge.judge_body(entry.type, entry.body)
                except MalformedMessage as error:
                    self._skip(entry, error)
            await asyncio.sleep(0)
        if self._judge.is_due:
            self.publish_verdicts()

    def publish_verdicts(self) -> None:
        """Publish the verdicts that are known."""
        for verdicts in self._judge.take_verdicts():
            self._count(verdicts)
            sequence = self._sequences[verdicts.pool] = self._sequences.get(verdicts.pool, 0) + 1
            instance = self._bus.process.instance
            payload = verdicts.make_message(instance, sequence, self._name).encode()
            try:
                self._bus.publish_written(RequestsJudged, payload, instance, sequence, verdicts.pool)
            except BusError as error:
                self._metrics.unpublished.inc(len(verdicts.requests))
                _log.warning("regret_unpublished", pool=verdicts.pool, reason=str(error))

    def _count(self, verdicts: "Verdicts") -> None:
        metrics, pool = self._metrics, verdicts.pool
        for profile, reason, regret_us in verdicts.choices:
            if not reason.startswith("filter:"):
                metrics.regret_requests.labels(pool, profile).inc()
            if regret_us:
                metrics.regret_seconds.labels(pool, profile, reason).inc(regret_us / 1e6)
        for why, count in verdicts.unjudged.items():
            metrics.unjudged.labels(pool, why).inc(count)

    def _skip(self, entry: RecordedEvent, error: MalformedMessage) -> None:
        """An event of another version: its request isn't judged."""
        self._metrics.unjudged.labels("-", "malformed").inc()
        if not self._malformed:
            self._malformed = True
            _log.warning("event_not_judged", type=entry.type, problem=str(error))
