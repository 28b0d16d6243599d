"""Every service of this project: its subject, its place in a journey, and the messages that it publishes and reads.

Data only. Subjects, parties, permissions on NATS, the stages that an itinerary may name and their order, and the
processes of a stack follow from this table. Adding a service: docs/where-to-change.md.
"""

from typing import Final, Literal, NamedTuple

from pointsman_contracts.journey import AnswerUse

Kind = Literal["edge", "stage", "background", "agent", "viewer"]
"""`edge`: takes requests from clients. `stage`: gets journeys, on a subject of its own. `background`: neither.
`agent`: runs beside each engine, with a login for each worker. `viewer`: shows what others publish, and no
service waits for it."""
OnError = Literal["allow", "deny", "degrade"]
"""When a stage has no replica, fails or times out. `deny`: reject the request. `allow`: skip the stage. `degrade`: the
stage does what it still can; it is skipped when it can't be reached."""
OrderRule = Literal["guard-before-cache", "selection-before-cache", "check-before-populate"]
"""Names of the rules below, as `order_exceptions` of the configuration uses them."""
ReviewMode = Literal["buffer", "window", "after"]
"""When a stage reviews a response: before the client has any of it, before each window of it, or afterwards."""
Content = Literal["none", "text", "body"]
"""The parts of a response that a stage gets."""


class Before(NamedTuple):
    """A rule of an itinerary's order: the stage `earlier` must come before the stage that has this rule."""

    rule: OrderRule
    earlier: str
    why: str
    """Completes "<stage> stands before <earlier>, and"."""


class Review(NamedTuple):
    """A stage's defaults for reviewing responses."""

    use: AnswerUse
    on_error: OnError = "deny"
    order: tuple[Before, ...] = ()


class Service(NamedTuple):
    """One service."""

    name: str
    """Name of its folder, package, command, logs, metrics, queue group and login."""
    kind: Kind
    verb: str = ""
    """For a stage: the message of its subject, e.g. `schedule` in `pm.rpc.request.schedule.v1`."""
    route: tuple[str, ...] = ()
    """For a stage: the meaning of the tokens behind its subject."""
    itinerary: bool = False
    """A stage that a profile may put into its itinerary. The other stages come before, in the order of the table."""
    on_error: OnError = "deny"
    """Default for a stage's entries in itineraries."""
    order: tuple[Before, ...] = ()
    """Rules of the order on the way in."""
    review: Review | None = None
    """Set for a service that may also review responses."""
    optional: bool = False
    """A stack runs without it unless a profile names it."""
    single: bool = False
    """A gateway of several bundles runs it in one of them."""
    publishes: tuple[str, ...] = ()
    """Type ids of messages, beyond those of every service of its kind (`PUBLISHED`)."""
    reads: tuple[str, ...] = ()
    """Type ids of messages, beyond those of every service of its kind (`READ`)."""


EVENTS: Final = (
    "request.scheduled.v1",
    "response.started.v1",
    "response.attempt-failed.v1",
    "request.answered.v1",
    "request.rejected.v1",
    "response.completed.v1",
    "response.reviewed.v1",
    "request.judged.v1",
    "session.moved.v1",
    "mirror.compared.v1",
    "pool.wanted.v1",
    "worker.joined.v1",
    "worker.silent.v1",
    "worker.left.v1",
    "worker.judged.v1",
    "worker.draining.v1",
    "budget.reached.v1",
    "api.key-changed.v1",
    "event.lost.v1",
)
"""Every message of the kind `evt`: what recorders, auditors and operators read."""

_LIMITS: Final = (
    "limits.ask.v1",
    "limits.verdicts.v1",
    "limits.release.v1",
    "limits.kept.v1",
    "limits.hand-over.v1",
    "limits.shard.v1",
)
_BATCHES: Final = ("file.record.v1", "file.chunk.v1", "batch.record.v1", "batch.line-result.v1")
_WORKERS: Final = ("worker.registration.v1", "worker.announcement.v1", "worker.load.v1")

SERVICES: Final = (
    Service("frontend", "edge"),
    Service("epp-adapter", "edge"),
    Service(
        "preprocessor",
        "stage",
        verb="preprocess",
        publishes=(*_LIMITS, "budget.reached.v1", "edge.prompt-tokens.v1", "edge.prompt-end.v1", "edge.content.v1"),
        reads=(
            "request.preprocess.v1",
            "edge.content-answer.v1",
            "response.completed.v1",
            *_LIMITS,
            "api.key.v1",
            "identity.lent.v1",
            "pool.rules.v1",
        ),
    ),
    Service(
        "profile-picker",
        "stage",
        verb="pick-profile",
        reads=("request.journey.v1", "pool.snapshot.v1"),
    ),
    Service(
        "model-selector",
        "stage",
        verb="select-model",
        itinerary=True,
        publishes=("edge.content.v1",),
        reads=(
            "request.journey.v1",
            "pool.snapshot.v1",
            "model.statistics.v1",
            "response.completed.v1",
            "edge.content-answer.v1",
        ),
    ),
    Service(
        "guard",
        "stage",
        verb="guard",
        itinerary=True,
        review=Review(AnswerUse(mode="window", content="text", overlap=128, sentences=True)),
        optional=True,
        publishes=("edge.content-edits.v1",),
        reads=("request.journey.v1", "edge.content-edited.v1"),
    ),
    Service(
        "semantic-cache",
        "stage",
        verb="look-up",
        itinerary=True,
        # A missing cache costs time and nothing else.
        on_error="allow",
        order=(
            Before("guard-before-cache", "guard", "it would answer prompts that the guard hasn't checked"),
            Before("selection-before-cache", "model-selector", "its entries belong to a model"),
        ),
        review=Review(
            AnswerUse(mode="after", content="body"),
            on_error="allow",
            order=(Before("check-before-populate", "guard", "it would keep responses that the guard hasn't checked"),),
        ),
        optional=True,
        publishes=("cache.purged.v1",),
        reads=("request.journey.v1", "cache.purge.v1"),
    ),
    Service(
        "scheduler",
        "stage",
        verb="schedule",
        route=("pool",),
        itinerary=True,
        publishes=(
            "scheduler.reservation.v1",
            "scheduler.state.v1",
            "scheduler.state-answer.v1",
            "worker.kv-query.v1",
            "edge.open-requests.v1",
            "edge.move-requests.v1",
            "worker.verdicts.v1",
            "scheduler.fleet-answer.v1",
            "session.moved.v1",
            "pool.wanted.v1",
            "worker.wake-order.v1",
        ),
        reads=(
            "request.journey.v1",
            "response.started.v1",
            "response.attempt-failed.v1",
            "response.completed.v1",
            "scheduler.reservation.v1",
            "scheduler.state.v1",
            "scheduler.state-answer.v1",
            *_WORKERS,
            "worker.kv.v1",
            "worker.kv-state.v1",
            "edge.open-requests-answer.v1",
            "edge.move-requests-answer.v1",
            "scheduler.fleet.v1",
        ),
    ),
    Service(
        "metrics-collector",
        "background",
        single=True,
        # Of engines without an agent it is the agent.
        publishes=(
            *_WORKERS,
            "worker.joined.v1",
            "worker.silent.v1",
            "worker.left.v1",
            "worker.judged.v1",
            "worker.draining.v1",
            "worker.drain-answer.v1",
            "worker.drain-order.v1",
            "pool.snapshot.v1",
            "model.statistics.v1",
            "pool.rules.v1",
        ),
        reads=(*_WORKERS, "worker.verdicts.v1", "worker.drain.v1", "response.completed.v1", "pool.rules.v1"),
    ),
    Service(
        "recorder",
        "background",
        single=True,
        publishes=(
            "request.story-answer.v1",
            "usage.record.v1",
            "usage.sums-answer.v1",
            "request.judged.v1",
            "regret.sums-answer.v1",
            "attainment.sums-answer.v1",
            "engine.time-answer.v1",
        ),
        reads=(
            *EVENTS,
            "pool.snapshot.v1",
            "request.story.v1",
            "usage.record.v1",
            "usage.sums.v1",
            "regret.sums.v1",
            "attainment.sums.v1",
            "engine.time.v1",
        ),
    ),
    Service(
        "batch",
        "background",
        optional=True,
        publishes=("request.preprocess.v1", *_BATCHES, "identity.lent.v1", "queue.result.v1"),
        reads=(
            "request.rejection.v1",
            "request.answer.v1",
            "pool.snapshot.v1",
            *_BATCHES,
            "queue.item.v1",
            "queue.result.v1",
        ),
    ),
    Service(
        "mirror",
        "background",
        review=Review(AnswerUse(mode="after", content="text"), on_error="allow"),
        optional=True,
        publishes=("mirror.compared.v1", "identity.lent.v1"),
        reads=("response.completed.v1",),
    ),
    Service(
        "worker-agent",
        "agent",
        publishes=(*_WORKERS, "worker.claim.v1", "worker.kv.v1", "worker.kv-state.v1"),
        reads=("worker.claim.v1", "worker.kv-query.v1", "worker.drain-order.v1", "worker.wake-order.v1"),
    ),
    Service(
        "console",
        "viewer",
        optional=True,
        publishes=(
            "request.story.v1",
            "request.dry-run.v1",
            "usage.sums.v1",
            "regret.sums.v1",
            "attainment.sums.v1",
            "engine.time.v1",
            "scheduler.fleet.v1",
        ),
        reads=(
            "pool.snapshot.v1",
            "request.scheduled.v1",
            "request.answered.v1",
            "request.rejected.v1",
            "response.completed.v1",
            "session.moved.v1",
            "scheduler.fleet-answer.v1",
            "request.story-answer.v1",
            "usage.sums-answer.v1",
            "regret.sums-answer.v1",
            "attainment.sums-answer.v1",
            "engine.time-answer.v1",
            "limits.shard.v1",
            "api.key.v1",
            "batch.record.v1",
        ),
    ),
)
"""In the order in which commands list them."""

PUBLISHED: Final[dict[Kind, tuple[str, ...]]] = {
    "edge": (
        "service.presence.v1",
        "event.lost.v1",
        "request.preprocess.v1",
        "response.review.v1",
        "response.started.v1",
        "response.attempt-failed.v1",
        "request.answered.v1",
        "request.rejected.v1",
        "response.completed.v1",
        "response.reviewed.v1",
        "edge.open-requests-answer.v1",
        "edge.move-requests-answer.v1",
        "edge.content-answer.v1",
        "edge.content-edited.v1",
        "response.kept.v1",
        "request.story-answer.v1",
    ),
    "stage": (
        "service.presence.v1",
        "event.lost.v1",
        "request.journey.v1",
        "request.decision.v1",
        "request.rejection.v1",
        "request.parked.v1",
        "request.answer.v1",
        # A stage before the scheduler decides by itself for a model of a provider.
        "request.scheduled.v1",
    ),
    "background": ("service.presence.v1", "event.lost.v1"),
    "agent": ("service.presence.v1",),
    "viewer": (),
}
"""Kind → type ids that each service of the kind publishes."""

READ: Final[dict[Kind, tuple[str, ...]]] = {
    "edge": (
        "service.presence.v1",
        "request.decision.v1",
        "request.rejection.v1",
        "request.parked.v1",
        "request.answer.v1",
        "response.verdict.v1",
        "pool.snapshot.v1",
        "edge.open-requests.v1",
        "edge.move-requests.v1",
        "edge.content.v1",
        "edge.content-edits.v1",
        "edge.prompt-tokens.v1",
        "edge.prompt-end.v1",
        "response.kept.v1",
        "request.dry-run.v1",
    ),
    "stage": ("service.presence.v1",),
    "background": ("service.presence.v1",),
    "agent": ("service.presence.v1",),
    "viewer": ("service.presence.v1",),
}
"""Kind → type ids that each service of the kind reads."""

REVIEWER_PUBLISHES: Final = ("response.verdict.v1", "edge.content.v1")
"""Type ids that each service with a `review` publishes."""
REVIEWER_READS: Final = ("response.review.v1", "edge.content-answer.v1")
"""Type ids that each service with a `review` reads."""


def names(*kinds: Kind) -> tuple[str, ...]:
    """The names of all services of these kinds, in the order of the table."""
    return tuple(service.name for service in SERVICES if service.kind in kinds)


EDGES: Final = names("edge")
STAGES: Final = {service.name: service for service in SERVICES if service.kind == "stage"}
"""By name, in the order of the table: first those that every request passes, then those of itineraries."""
REVIEWERS: Final = {service.name: service for service in SERVICES if service.review is not None}
"""The services that may review responses, by name."""
ITINERARY: Final = tuple(service.name for service in SERVICES if service.itinerary)
"""The stages that a profile may put into its itinerary, in any order that the rules allow."""
