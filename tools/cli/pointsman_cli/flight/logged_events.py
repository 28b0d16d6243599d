"""The events of a flight log: what the gateway published about each request, as far as a judge reads it.

A log has inputs and outcomes. The candidates of a decision and their scores come from its replay.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_cli.words import CommandError
from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.response import ResponseCompleted, ResponseStarted, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.target import Target
from pointsman_flight import records
from pointsman_flight.reader import Flight, LoggedRecord
from pointsman_recorder.domain.judge import JudgedEvent
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.flight.replay import FlightReplay, Replayed
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.scheduled_event import explain, legs

Key = tuple[str, str]
"""Edge and request id."""


class LoggedEvent(NamedTuple):
    """One event. Those of a response come from each scheduler that heard them."""

    at_ms: int
    """Unix milliseconds."""
    pool: str
    key: Key
    event: JudgedEvent
    """With the facts that a judge reads; others have no meaning."""


def logged_events(flights: Iterable[Flight], seen: Callable[[LoggedRecord], None]) -> Iterator[LoggedEvent]:
    """The events of all flights by their time, each response's once. `seen` is called with every record. Raises
    LogError and SnapshotError, and CommandError for a log that this version doesn't replay as it was recorded."""
    open_requests: set[tuple[str, Key]] = set()
    for event in heapq.merge(*[_Telling(flight, seen).events() for flight in flights], key=lambda each: each.at_ms):
        request = event.pool, event.key
        if isinstance(event.event, RequestScheduled):
            open_requests.add(request)
        elif request not in open_requests:
            continue  # over, or decided by a scheduler whose log isn't here
        elif isinstance(event.event, ResponseCompleted):
            open_requests.remove(request)
        yield event


class _Telling:
    """One flight's events."""

    def __init__(self, flight: Flight, seen: Callable[[LoggedRecord], None]) -> None:
        header = flight.segments[0].header
        self._flight: Final = flight
        self._seen: Final = seen
        self._offset_ms: Final = header.unix_ns / 1e6 - header.monotonic * 1000.0
        self._facts: Final[dict[Key, RequestFacts]] = {}
        """The facts of requests that wait for their engine: the record of the wait's end doesn't repeat them."""

    def events(self) -> Iterator[LoggedEvent]:
        for step in FlightReplay(self._flight, registries()).run():
            logged = step.logged
            self._seen(logged)
            if step.difference:
                raise CommandError(
                    f"{logged.segment.path.name}, input {logged.number}: this version decides otherwise than recorded: "
                    f"{step.difference}.",
                    "Judge it with the version and on the machine that wrote it; `pointsman replay` says what differs.",
                )
            event = self._event(step)
            if event is not None:
                yield event

    def _event(self, step: Replayed) -> LoggedEvent | None:
        match step.logged.record:
            case records.Decided() as record:
                return self._decided(record, step)
            case records.AnswerStarted() as record:
                return self._logged(
                    ResponseStarted(
                        request_id=record.request_id,
                        source=record.edge,
                        sequence=0,
                        at_ms=self._wall(record.at),
                        pool=self._flight.pool,
                        worker=record.worker,
                        ttft_ms=record.ttft_ms,
                    )
                )
            case records.AttemptLost() as record:
                return self._logged(replace(record.event, at_ms=self._wall(record.at), pool=self._flight.pool))
            case records.RequestCompleted() as record:
                tokens = record.output_tokens
                self._facts.pop((record.edge, record.request_id), None)
                return self._logged(
                    ResponseCompleted(
                        request_id=record.request_id,
                        source=record.edge,
                        sequence=0,
                        at_ms=record.told_ms or self._wall(record.at),
                        pool=self._flight.pool,
                        status=0,
                        outcome="ok" if record.ok else "failed",
                        usage=None if tokens is None else Usage(completion_tokens=tokens),
                    )
                )
            case records.WaitEnded(at_ms=None) as record:
                self._facts.pop((record.edge, record.request_id), None)
                return None
            case _:
                return None

    def _decided(self, record: records.Decided, step: Replayed) -> LoggedEvent | None:
        outcome, key = step.outcome, (record.edge, record.request_id)
        if record.request is not None:
            self._facts[key] = record.request.facts
        if not isinstance(outcome, Scheduled):
            return None
        facts = self._facts.pop(key, None)
        if facts is None:
            return None  # it began to wait before the log began
        return self._logged(
            RequestScheduled(
                request_id=record.request_id,
                source=record.edge,
                sequence=0,
                at_ms=self._wall(record.at),
                pool=self._flight.pool,
                edge=record.edge,
                model="",
                target=Target(model=""),
                profile="",
                primary=outcome.selection.primary.profile,
                runs=explain(outcome),
                endpoints=tuple(worker.name for worker in outcome.endpoints),
                reason="",
                legs=legs(outcome),
                stream=facts.stream,
                prompt_tokens=facts.prompt_tokens,
                bound_because="" if record.bound is None else "bound",
                revision=0,
            )
        )

    def _logged(self, event: JudgedEvent) -> LoggedEvent:
        return LoggedEvent(event.at_ms, self._flight.pool, (event.source, event.request_id), event)

    def _wall(self, at: float) -> int:
        return round(self._offset_ms + at * 1000.0)
