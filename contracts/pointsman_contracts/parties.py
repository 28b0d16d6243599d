"""Who sends each message and who reads it, by service. The accounts of the NATS server are made of this table.

A party is the name of a service, or one of `OPERATOR` and `AUDITOR`. A message whose route is an inbox is an answer: it
goes to the inbox of its readers.
"""

from typing import Final, NamedTuple

AGENT: Final = "worker-agent"
OPERATOR: Final = "operator"
"""The person at the command `pointsman`."""
AUDITOR: Final = "auditor"
"""Whoever keeps or looks at events outside this project."""

EDGES: Final = ("frontend", "epp-adapter")
PICKED: Final = ("model-selector", "guard", "semantic-cache", "scheduler")
"""Stages that a profile puts in any order: each may hand a journey on to each."""
STAGES_IN_ORDER: Final = ("preprocessor", "profile-picker", *PICKED)
RESPONSE_STAGES: Final = ("guard", "semantic-cache")
SERVICES: Final = (*EDGES, *STAGES_IN_ORDER, "metrics-collector", "recorder")
"""Every service that has one login for all of its replicas. An agent has one of its own for each worker."""
BUNDLE: Final = "bundle"
"""The login of a process that runs several services: it may do what each of them may."""
WATCHERS: Final = ("recorder", AUDITOR, OPERATOR)
"""Who reads every event."""


class Parties(NamedTuple):
    """Of one message."""

    senders: tuple[str, ...]
    readers: tuple[str, ...]


PARTIES: Final[dict[str, Parties]] = {
    "request.preprocess.v1": Parties(EDGES, ("preprocessor",)),
    # Who hands on to whom is `NEXT`.
    "request.journey.v1": Parties(STAGES_IN_ORDER, STAGES_IN_ORDER[1:]),
    "request.decision.v1": Parties(STAGES_IN_ORDER, EDGES),
    "request.rejection.v1": Parties(STAGES_IN_ORDER, EDGES),
    "request.parked.v1": Parties(STAGES_IN_ORDER, EDGES),
    "request.answer.v1": Parties(STAGES_IN_ORDER, EDGES),
    "response.review.v1": Parties(EDGES, RESPONSE_STAGES),
    "response.verdict.v1": Parties(RESPONSE_STAGES, EDGES),
    # A stage before the scheduler decides by itself for a model of a provider.
    "request.scheduled.v1": Parties(STAGES_IN_ORDER, WATCHERS),
    "response.started.v1": Parties(EDGES, ("scheduler", *WATCHERS)),
    "response.attempt-failed.v1": Parties(EDGES, ("scheduler", *WATCHERS)),
    "request.answered.v1": Parties(EDGES, WATCHERS),
    "request.rejected.v1": Parties(EDGES, WATCHERS),
    "response.completed.v1": Parties(EDGES, ("scheduler", "metrics-collector", "preprocessor", *WATCHERS)),
    "response.reviewed.v1": Parties(EDGES, WATCHERS),
    "scheduler.reservation.v1": Parties(("scheduler",), ("scheduler",)),
    "scheduler.state.v1": Parties(("scheduler",), ("scheduler",)),
    "scheduler.state-answer.v1": Parties(("scheduler",), ("scheduler",)),
    "worker.registration.v1": Parties((AGENT, "metrics-collector"), ("scheduler", "metrics-collector")),
    "worker.announcement.v1": Parties((AGENT, "metrics-collector"), ("scheduler", "metrics-collector")),
    "worker.load.v1": Parties((AGENT, "metrics-collector"), ("scheduler", "metrics-collector")),
    "worker.kv.v1": Parties((AGENT,), ("scheduler",)),
    "worker.kv-query.v1": Parties(("scheduler",), (AGENT,)),
    "worker.kv-state.v1": Parties((AGENT,), ("scheduler",)),
    "worker.joined.v1": Parties(("metrics-collector",), WATCHERS),
    "worker.silent.v1": Parties(("metrics-collector",), WATCHERS),
    "worker.left.v1": Parties(("metrics-collector",), WATCHERS),
    "pool.snapshot.v1": Parties(("metrics-collector",), (*EDGES, "profile-picker", "model-selector", OPERATOR)),
    "model.statistics.v1": Parties(("metrics-collector",), ("model-selector", OPERATOR)),
    "service.presence.v1": Parties((*SERVICES, AGENT), (*SERVICES, AGENT, OPERATOR)),
    "edge.open-requests.v1": Parties(("scheduler",), EDGES),
    "edge.open-requests-answer.v1": Parties(EDGES, ("scheduler",)),
    "limits.ask.v1": Parties(("preprocessor",), ("preprocessor",)),
    "limits.verdicts.v1": Parties(("preprocessor",), ("preprocessor",)),
    "limits.release.v1": Parties(("preprocessor",), ("preprocessor",)),
    "limits.kept.v1": Parties(("preprocessor",), ("preprocessor",)),
    "limits.hand-over.v1": Parties(("preprocessor",), ("preprocessor",)),
    "limits.shard.v1": Parties(("preprocessor",), ("preprocessor",)),
    "budget.reached.v1": Parties(("preprocessor",), WATCHERS),
    "edge.content.v1": Parties(RESPONSE_STAGES, EDGES),
    "edge.content-answer.v1": Parties(EDGES, RESPONSE_STAGES),
    "edge.content-edits.v1": Parties(("guard",), EDGES),
    "edge.content-edited.v1": Parties(EDGES, ("guard",)),
    "edge.prompt-tokens.v1": Parties(("preprocessor",), EDGES),
    "api.key.v1": Parties((OPERATOR,), ("preprocessor", OPERATOR)),
    "api.key-changed.v1": Parties((OPERATOR,), WATCHERS),
    "cache.purge.v1": Parties((OPERATOR,), ("semantic-cache",)),
    "cache.purged.v1": Parties(("semantic-cache",), (OPERATOR,)),
    "pool.rules.v1": Parties(("metrics-collector",), ("metrics-collector", "preprocessor")),
    "request.story.v1": Parties((OPERATOR,), ("recorder",)),
    "request.story-answer.v1": Parties(("recorder",), (OPERATOR,)),
    "usage.record.v1": Parties(("recorder",), ("recorder", AUDITOR, OPERATOR)),
    "usage.sums.v1": Parties((OPERATOR,), ("recorder",)),
    "usage.sums-answer.v1": Parties(("recorder",), (OPERATOR,)),
}
"""By type id."""

NEXT: Final[dict[str, tuple[str, ...]]] = {
    "preprocessor": ("profile-picker",),
    "profile-picker": PICKED,
    **dict.fromkeys(PICKED, PICKED),
}
"""Stage → stages that it hands journeys to; itself too, for another replica or for another model's pool."""
