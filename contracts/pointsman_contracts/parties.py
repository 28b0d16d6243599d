"""Who publishes each message and who reads it, from the table of services. The accounts of the NATS server follow.

A party is the name of a service, or one of `OPERATOR`, `AUDITOR` and `PRODUCER`. A message whose route is an inbox is a
reply: it goes to the inbox of its readers.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pointsman_contracts.services import (
    EVENTS,
    ITINERARY,
    PUBLISHED,
    READ,
    REVIEWER_PUBLISHES,
    REVIEWER_READS,
    SERVICES,
    STAGES,
    Service,
    names,
)

AGENT: Final = "worker-agent"
OPERATOR: Final = "operator"
"""The person at the command `pointsman`."""
AUDITOR: Final = "auditor"
"""A program outside this project that reads events."""
PRODUCER: Final = "producer"
"""A program outside this project that publishes items of a work queue, with a login for each queue."""
BUNDLE: Final = "bundle"
"""The login of a process that runs several services: it may do what each of them may."""
WATCHERS: Final = ("recorder", AUDITOR, OPERATOR)
"""The parties that read every event."""
VIEWERS: Final = names("viewer")
"""Services that make nothing on the server: neither streams nor buckets."""
SHARED_LOGINS: Final = names("edge", "stage", "background", "viewer")
"""Every service whose replicas share one login. An agent has one of its own for each worker."""
OWN_NAMES: Final = frozenset({*SHARED_LOGINS, AGENT, BUNDLE, OPERATOR, AUDITOR, PRODUCER, "system"})
"""Names of this project's services and logins. A custom stage of such a name would get that login's permissions."""

_PEOPLE: Final = {
    OPERATOR: (
        (
            "api.key.v1",
            "api.key-changed.v1",
            "cache.purge.v1",
            "worker.drain.v1",
            "request.story.v1",
            "usage.sums.v1",
            "regret.sums.v1",
            "attainment.sums.v1",
            "engine.time.v1",
        ),
        (
            *EVENTS,
            "pool.snapshot.v1",
            "model.statistics.v1",
            "service.presence.v1",
            "api.key.v1",
            "cache.purged.v1",
            "worker.drain-answer.v1",
            "request.story-answer.v1",
            "usage.record.v1",
            "usage.sums-answer.v1",
            "regret.sums-answer.v1",
            "attainment.sums-answer.v1",
            "engine.time-answer.v1",
        ),
    ),
    AUDITOR: ((), (*EVENTS, "usage.record.v1")),
    PRODUCER: (("queue.item.v1",), ("queue.result.v1",)),
}
"""Party that isn't a service → type ids that it publishes, and those that it reads."""


class Parties(NamedTuple):
    """The parties of one message."""

    senders: tuple[str, ...]
    readers: tuple[str, ...]


def _published(service: Service) -> tuple[str, ...]:
    return (*PUBLISHED[service.kind], *(REVIEWER_PUBLISHES if service.review else ()), *service.publishes)


def _read(service: Service) -> tuple[str, ...]:
    return (*READ[service.kind], *(REVIEWER_READS if service.review else ()), *service.reads)


def _parties() -> Iterator[tuple[str, Parties]]:
    published = {each.name: _published(each) for each in SERVICES} | {name: own for name, (own, _) in _PEOPLE.items()}
    read = {each.name: _read(each) for each in SERVICES} | {name: own for name, (_, own) in _PEOPLE.items()}
    for message in sorted({one for own in (*published.values(), *read.values()) for one in own}):
        yield (
            message,
            Parties(
                tuple(name for name, own in published.items() if message in own),
                tuple(name for name, own in read.items() if message in own),
            ),
        )


PARTIES: Final[dict[str, Parties]] = dict(_parties())
"""By type id."""


def _next() -> Iterator[tuple[str, tuple[str, ...]]]:
    before = [stage for stage in STAGES if stage not in ITINERARY]
    for position, stage in enumerate(before):
        yield stage, (before[position + 1],) if position + 1 < len(before) else ITINERARY
    for stage in ITINERARY:
        yield stage, ITINERARY


NEXT: Final[dict[str, tuple[str, ...]]] = dict(_next())
"""Stage → the stages to which it forwards journeys; itself too, for another replica or for another model's pool."""
