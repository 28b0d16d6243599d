"""The events of a flight log: what the gateway published about each request, as far as a judge reads it.

A log has inputs and outcomes. The candidates of a decision and their scores come from its replay.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from pointsman_cli.words import CommandError
from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import Message
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_flight import records
from pointsman_flight.reader import Flight, LoggedRecord
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.flight.replay import FlightReplay, Replayed
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.scheduled_event import explain, legs, to_json

Key = tuple[str, str]
"""Edge and request id."""


class LoggedEvent(NamedTuple):
    """One event. Those of a response come from each scheduler that heard them."""

    at_ms: int
    """Unix milliseconds."""
    pool: str
    key: Key
    type_id: str
    body: bytes
    """JSON, with the fields that a judge reads."""


def logged_events(flights: Iterable[Flight], seen: Callable[[LoggedRecord], None]) -> Iterator[LoggedEvent]:
    """The events of all flights by their time, each response's once. `seen` is called with every record. Raises
    LogError and SnapshotError, and CommandError for a log that this version doesn't replay as it was recorded."""
    open_requests: set[tuple[str, Key]] = set()
    for event in heapq.merge(*[_Telling(flight, seen).events() for flight in flights], key=lambda each: each.at_ms):
        request = event.pool, event.key
        if event.type_id == RequestScheduled.address.type_id:
            open_requests.add(request)
        elif request not in open_requests:
            continue  # over, or decided by a scheduler whose log isn't here
        elif event.type_id == ResponseCompleted.address.type_id:
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
        """Of requests that wait for their engine: the record of the wait's end doesn't repeat them."""

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
                return self._of(ResponseStarted, record, self._wall(record.at))
            case records.AttemptLost() as record:
                event = record.event
                moved = {} if event.next_worker is None else {"next_worker": event.next_worker}
                if event.leg:
                    moved["leg"] = event.leg
                return self._of(AttemptFailed, record, self._wall(record.at), **moved)
            case records.RequestCompleted() as record:
                tokens = record.output_tokens
                usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
                outcome = "ok" if record.ok else "failed"
                at_ms = record.told_ms or self._wall(record.at)
                self._facts.pop((record.edge, record.request_id), None)
                return self._of(ResponseCompleted, record, at_ms, outcome=outcome, **usage)
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
        runs = explain(outcome)
        return self._of(
            RequestScheduled,
            record,
            self._wall(record.at),
            edge=record.edge,
            primary=outcome.selection.primary.profile,
            runs=runs,
            endpoints=[worker.name for worker in outcome.endpoints],
            legs=legs(outcome),
            stream=facts.stream,
            prompt_tokens=facts.prompt_tokens,
            bound_because="" if record.bound is None else "bound",
        )

    def _of(
        self,
        kind: type[Message],
        record: records.Decided | records.AnswerStarted | records.AttemptLost | records.RequestCompleted,
        at_ms: int,
        **fields: object,
    ) -> LoggedEvent:
        whole = {
            "request_id": record.request_id, "source": record.edge, "at_ms": at_ms, "pool": self._flight.pool, **fields
        }  # fmt: skip
        key = record.edge, record.request_id
        return LoggedEvent(at_ms, self._flight.pool, key, kind.address.type_id, to_json(whole))

    def _wall(self, at: float) -> int:
        return round(self._offset_ms + at * 1000.0)
