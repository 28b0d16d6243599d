"""The subjects that each login may publish and subscribe to on the NATS server, from the contracts. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pointsman_contracts.batch import CHUNKS_BUCKET, RESULTS_BUCKET
from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.message import Message
from pointsman_contracts.parties import (
    AGENT,
    AUDITOR,
    BUNDLE,
    NEXT,
    OPERATOR,
    PARTIES,
    PRODUCER,
    SHARED_LOGINS,
    VIEWERS,
    WATCHERS,
)
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.response_stage import ResponseReview
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import (
    ANY,
    EVENT_SUBJECTS,
    REST,
    direct_subject,
    inbox,
    owed_subject,
    stage_subject,
    subject,
    token,
)
from pointsman_contracts.usage import UsageRecord
from pointsman_contracts.work import WORK_RESULTS_STREAM, WORK_STREAM, WorkItem, WorkResult
from pointsman_contracts.worker import rank_name
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, EVENT_STREAM, PROBE_STREAM

JS: Final = "$JS.API"
_BUCKET: Final = "KV_"
"""Prefix of the stream names of buckets."""
BATCH: Final = "batch"
_USAGE_STREAM: Final = "PM_USAGE"
_STREAMS: Final[dict[type[Message], str]] = {
    UsageRecord: _USAGE_STREAM,
    WorkItem: WORK_STREAM,
    WorkResult: WORK_RESULTS_STREAM,
}
"""Message that isn't an event → the stream that keeps it."""
_MAKERS: Final = {
    EVENT_STREAM: (*SHARED_LOGINS, OPERATOR),
    _USAGE_STREAM: ("recorder", OPERATOR),
    WORK_STREAM: (BATCH, OPERATOR),
    WORK_RESULTS_STREAM: (BATCH, OPERATOR),
}
"""Stream → the logins that may create it. A bucket is created by its writers and readers, except agents."""


@dataclass(frozen=True, order=True)
class AgentIdentity:
    """The worker that an agent speaks for."""

    pool: str
    worker: str
    ranks: int = 1
    """Data-parallel ranks of its engine: it speaks for each of them, as a worker of its own, or for the engine."""

    def __post_init__(self) -> None:
        if {self.pool, self.worker} & {ANY, REST}:
            raise ValueError("an agent speaks for one worker, not for * or >")

    @property
    def user(self) -> str:
        """Name of the agent's login."""
        return f"{AGENT}/{self.pool}/{self.worker}"

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of its workers."""
        ranks = range(self.ranks) if self.ranks > 1 else ()
        return (self.worker, *[rank_name(self.worker, number) for number in ranks])


@dataclass(frozen=True)
class Permissions:
    """Subjects, sorted; what isn't here is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """Whether each message that arrives may be answered once. A login that may publish to a service's inboxes could
    forge answers; agents and custom stages get this permission instead. Its cost: the server must keep count."""


def of_service(party: str, stages: Iterable[str] = ()) -> Permissions:
    """A service's, a bundle's, the operator's or the auditor's, in a gateway with these foreign stages."""
    if party != BUNDLE:
        return _sorted(_publishes(party, None, tuple(stages)), _subscribes(party, None))
    members = (*SHARED_LOGINS, AGENT)
    published = {one for each in members for one in _publishes(each, None, tuple(stages))}
    subscribed = {one for each in members for one in _subscribes(each, None)} - {_inbox(each) for each in members}
    return _sorted(published, (*subscribed, _inbox(BUNDLE)))


def of_agent(worker: AgentIdentity) -> Permissions:
    """The agent's of one worker: it can speak for no other."""
    return _sorted(_publishes(AGENT, worker, ()), _subscribes(AGENT, worker), answers=True)


def of_stage(name: str) -> Permissions:
    """The permissions of a custom stage, on the way there and on the way back."""
    return _sorted((), (stage_subject(name), subject(ResponseReview, name), _inbox(name)), answers=True)


def of_producer(queue: str) -> Permissions:
    """The permissions of a producer of one work queue: it publishes items, and follows the results of this queue alone,
    with a consumer that has the login's name."""
    consumer = token(producer_user(queue))
    results = WORK_RESULTS_STREAM
    follow = (
        f"{JS}.STREAM.INFO.{results}",
        f"{JS}.CONSUMER.CREATE.{results}.{consumer}.{subject(WorkResult, queue, REST)}",
        f"{JS}.CONSUMER.INFO.{results}.{consumer}",
        f"{JS}.CONSUMER.MSG.NEXT.{results}.{consumer}",
        f"$JS.ACK.{results}.{consumer}.{REST}",
    )
    return _sorted((subject(WorkItem, queue), *follow), (_inbox(producer_user(queue)),))


def producer_user(queue: str) -> str:
    """Name of the login of a queue's producers."""
    return f"{PRODUCER}-{queue}"


def _sorted(publish: Iterable[str], subscribe: Iterable[str], *, answers: bool = False) -> Permissions:
    return Permissions(_distinct(publish), _distinct(subscribe), answers)


def _distinct(subjects: Iterable[str]) -> tuple[str, ...]:
    """Without those that an open-ended one covers."""
    found = set(subjects)
    stems = tuple(one.removesuffix(REST) for one in found if one.endswith(f".{REST}"))
    return tuple(sorted(one for one in found if one.endswith(f".{REST}") or not one.startswith(stems)))


def _publishes(party: str, worker: AgentIdentity | None, stages: tuple[str, ...]) -> Iterator[str]:
    for message in MESSAGES:
        parties = PARTIES[message.address.type_id]
        if party not in parties.senders:
            continue
        if message.address.route == ("inbox",):
            if worker is None:
                yield from (_inbox(reader) for reader in (*parties.readers, BUNDLE))
        elif message is PreprocessRequest:
            yield from _stage(parties.readers)
        elif message is Journey:
            yield from _stage(NEXT[party])
            yield from (stage_subject(stage) for stage in stages)
        elif message is ResponseReview:
            yield from (subject(message, stage) for stage in (*parties.readers, *stages))
        else:
            for route in _routes(message, party, worker):
                yield (to := subject(message, *route))
                if message.address.kind == "evt" and party not in (OPERATOR, AUDITOR):
                    yield owed_subject(to)
    for name in _streams():
        if party in _writers(name) | _readers(name) | _makers(name):
            yield f"{JS}.STREAM.INFO.{name}"
        if party in _makers(name):
            yield f"{JS}.STREAM.CREATE.{name}"
        if party in _readers(name):
            # A login that may use any consumer could take the recorder's events. An auditor's consumer has the login's
            # name.
            consumer = AUDITOR if party == AUDITOR else ANY
            yield from _following(name) if name.startswith(_BUCKET) else _consuming(name, consumer)
    if party == BATCH:
        # The content of a file goes with it, the results of lines with their batch.
        yield from (f"{JS}.STREAM.PURGE.{_BUCKET}{bucket}" for bucket in (CHUNKS_BUCKET, RESULTS_BUCKET))
        # It looks whether an item has a result already.
        yield f"{JS}.STREAM.MSG.GET.{WORK_RESULTS_STREAM}"
    if party == "preprocessor":
        # Budgets read their spending from the ends of requests, without a consumer.
        yield f"{JS}.DIRECT.GET.{EVENT_STREAM}"
    if party == OPERATOR:
        yield f"$KV.{CONFIG_BUCKET}.{REST}"
        yield f"{JS}.INFO"
        yield f"{JS}.STREAM.CREATE.{PROBE_STREAM}"
        yield f"{JS}.STREAM.DELETE.{PROBE_STREAM}"


def _subscribes(party: str, worker: AgentIdentity | None) -> Iterator[str]:
    yield _inbox(worker.user if worker is not None else party)
    for message in MESSAGES:
        parties = PARTIES[message.address.type_id]
        address = message.address
        if party not in parties.readers or address.route == ("inbox",) or address.bucket:
            continue
        if message is PreprocessRequest or message is Journey:
            yield from _stage((party,))
        elif message is ResponseReview:
            yield subject(message, party)
        elif message is ServicePresence:
            yield subject(message, ANY, ANY)
        else:
            yield from (subject(message, *route) for route in _routes(message, party, worker))
    if party in WATCHERS:
        yield EVENT_SUBJECTS


def _stage(stages: Iterable[str]) -> Iterator[str]:
    """The queue group's subjects and those of each replica."""
    for stage in stages:
        route = tuple(ANY for _ in STAGES[stage].route)
        yield stage_subject(stage, *route)
        yield direct_subject(stage, ANY, *route)


def _routes(message: type[Message], party: str, agent: AgentIdentity | None) -> Iterator[list[str]]:
    """A party publishes only about itself, an agent only about its workers; all other parts of a subject are
    wildcards."""
    own = {"service": party} if message is ServicePresence else {}
    for worker in ("",) if agent is None else agent.workers:
        if agent is not None:
            own |= {"pool": agent.pool, "worker": worker}
        yield [own.get(name, ANY) for name in message.address.route]


def _inbox(user: str) -> str:
    return f"{inbox(user)}.{REST}"


def _streams() -> list[str]:
    """Every stream; a bucket is one."""
    buckets = {message.address.bucket for message in MESSAGES if message.address.bucket} | {CONFIG_BUCKET}
    return [*sorted(f"{_BUCKET}{bucket}" for bucket in buckets), EVENT_STREAM, *_STREAMS.values()]


def _parties_of(stream: str, part: int) -> set[str]:
    """Senders (0) or readers (1) of the messages in a stream."""
    return {
        party
        for message in MESSAGES
        if stream == _stream_of(message)
        for party in PARTIES[message.address.type_id][part]
    }


def _stream_of(message: type[Message]) -> str | None:
    if message.address.bucket:
        return f"{_BUCKET}{message.address.bucket}"
    return EVENT_STREAM if message.address.kind == "evt" else _STREAMS.get(message)


def _writers(stream: str) -> set[str]:
    return {OPERATOR} if stream == f"{_BUCKET}{CONFIG_BUCKET}" else _parties_of(stream, 0)


def _readers(stream: str) -> set[str]:
    """The services that read a stored stream. Any service may subscribe to live events."""
    if stream == f"{_BUCKET}{CONFIG_BUCKET}":
        return {*SHARED_LOGINS, OPERATOR}
    return set(WATCHERS) if stream == EVENT_STREAM else _parties_of(stream, 1)


def _makers(stream: str) -> set[str]:
    return set(_MAKERS.get(stream, _writers(stream) | _readers(stream))) - {AGENT, AUDITOR, PRODUCER, *VIEWERS}


def _following(stream: str) -> Iterator[str]:
    """A bucket's keys, now and as they change, without a consumer that outlives the reader."""
    yield f"{JS}.CONSUMER.CREATE.{stream}"
    yield f"{JS}.CONSUMER.INFO.{stream}.{ANY}"
    yield f"{JS}.CONSUMER.DELETE.{stream}.{ANY}"
    yield f"{JS}.DIRECT.GET.{stream}.{REST}"
    yield f"{JS}.STREAM.MSG.GET.{stream}"
    yield f"$JS.FC.{stream}.{REST}"


def _consuming(stream: str, consumer: str) -> Iterator[str]:
    """A stream's messages, also with a consumer that remembers how far it was read."""
    if consumer == ANY:
        yield f"{JS}.CONSUMER.CREATE.{stream}"
        yield f"{JS}.CONSUMER.LIST.{stream}"
    yield f"{JS}.CONSUMER.CREATE.{stream}.{consumer}"
    yield f"{JS}.CONSUMER.CREATE.{stream}.{consumer}.{REST}"
    yield f"{JS}.CONSUMER.DURABLE.CREATE.{stream}.{consumer}"
    yield f"{JS}.CONSUMER.INFO.{stream}.{consumer}"
    yield f"{JS}.CONSUMER.DELETE.{stream}.{consumer}"
    yield f"{JS}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    yield f"$JS.ACK.{stream}.{consumer}.{REST}"
    yield f"$JS.FC.{stream}.{consumer}.{REST}"
