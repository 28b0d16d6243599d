"""Events of a request after its decision. Published by edges."""

from typing import Annotated, ClassVar

from msgspec import Meta

from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.events import RequestEvent
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.message import Address, Blob, Part, always
from pointsman_contracts.service_level import ServicePromise
from pointsman_contracts.session import RequestSession


class SpecialTokens(Part, frozen=True, kw_only=True):
    """Tokens of a request that providers price otherwise than those of texts: parts of the counts of its `Usage`."""

    cache_write: int = always(0)
    """Prompt tokens that a provider's cache keeps from now on."""
    cache_write_1h: int = always(0)
    """Part of `cache_write` that it keeps for an hour."""
    audio_prompt: int = always(0)
    audio_completion: int = always(0)
    image_prompt: int = always(0)
    image_completion: int = always(0)
    tier: str = always("")
    """The service tier that the provider reports beside them, e.g. `priority` or `batch`."""


class Usage(Part, frozen=True, kw_only=True):
    """Tokens that the engine or provider reported, or that the edge estimates where it didn't."""

    prompt_tokens: int = always(0)
    completion_tokens: int = always(0)
    cached_tokens: int = always(0)
    """Part of `prompt_tokens` that came from the engine's KV cache."""
    reasoning_tokens: int = always(0)
    """Part of `completion_tokens`."""
    estimated: bool = always(False)
    """Neither engine nor provider reported all of it, e.g. because the client left early: the edge counted it."""
    chunks: int | None = None
    """Events with text, of a stream with a promised time between tokens of which nothing was reported: each has a token
    at least. None for any other."""
    special: SpecialTokens | None = None
    """None when there are none, as in most requests."""
    cached_unknown: bool = always(False)
    """Nothing was reported of cached tokens: `cached_tokens` is 0 because it is unknown."""


class Attempt(Part, frozen=True, kw_only=True):
    """One try to reach an endpoint."""

    worker: str
    """The provider's name where a provider serves the model."""
    outcome: str
    """`answered`, `refused` (no connection), `failed` (a redirect, 5xx, or closed before the first byte), `timeout`,
    `cut_off` (died after the first byte), `limited` (429, 529), `denied` (401, 403, or another status from 400 on
    for which a second endpoint was asked), `missing` (404 that names a model
    or adapter, 404 or 405 for the whole path), `empty` (an answer without a word; the client has it if no later attempt
    answered), `repeating` (the client has an answer that ends with one short text over and over), `stalled` (a
    scheduler moved the request: no first byte for far longer
    than predicted), `drained` (its engine drains, and the request moved, whether its answer had begun or not),
    `preempted` (a background request that gave way to others, whether its answer had begun or not),
    `unsupported` (the provider doesn't support a field), `escalated` (a cascade went on to another model)."""
    status: int | None = None
    took_ms: float = always(0.0)
    target: Target | None = None
    """The model that was tried, where it isn't the decision's target."""
    reason: str = always("")
    """Why the endpoint didn't answer, in words without content of request or answer."""
    limited_until_ms: int | None = None
    """Until when the provider asks for no more requests, unix milliseconds."""
    remaining: float | None = None
    """Part of the provider's request or token quota that is left, in [0,1]."""


class LegReport(Part, frozen=True, kw_only=True):
    """The part of a request's work that another engine did, or was to do, for the endpoint that answers."""

    leg: str
    """The part of the work, e.g. `prefill`."""
    worker: str
    outcome: str
    """The outcome (`Attempt.outcome`); `useless`: it answered, but without what the endpoint that answers needs;
    `skipped`: it wasn't asked; `lost`: it answered, but its KV cache didn't reach the endpoint that answers. After any
    of them but `answered` that endpoint computes the prompt itself."""
    status: int | None = None
    began_ms: float = always(0.0)
    """From receiving the request until this leg was sent."""
    took_ms: float = always(0.0)
    """Until its answer was complete."""
    reason: str = always("")
    """Why the outcome isn't `answered`, in words without content of request or answer."""


class Seam(Part, frozen=True, kw_only=True):
    """A point of a streamed answer at which another engine continued it: the one before broke off."""

    worker: str
    """The engine that broke off."""
    next_worker: str
    """The engine that continued."""
    form: str
    """`exact`: from the token ids that the client had; `text`: from their text."""
    at_ms: float = always(0.0)
    """From receiving the request until the answer broke off."""
    gap_ms: float = always(0.0)
    """From then on until the rest of the answer began."""
    kept_tokens: int = always(0)
    """Tokens of the answer that the client had."""
    computed_again: int = always(0)
    """Tokens that the next engine got as its prompt: those of the request's prompt, where they are known, and those
    kept. Part of them may have been in its cache. No part of `ResponseCompleted.usage`: the client isn't charged."""


class UnusedAnswer(Part, frozen=True, kw_only=True):
    """An answer of a cascade's model that the client didn't get. It is charged."""

    target: Target
    worker: str
    served: str | None = None
    """Name that the configuration knows the model by."""
    judged: AnswerConfidence
    usage: Usage | None = None
    """None when no model was at work, or that is unknown."""
    cost_nanos: int | None = None
    """Cost of `usage`, in nano-dollars; None without a price."""
    began_ms: float = always(0.0)
    """From receiving the request until this model was asked."""
    took_ms: float = always(0.0)
    """Until its answer was judged."""


class ResponseStarted(RequestEvent, frozen=True, kw_only=True):
    """The first byte of a streamed answer arrived. For any other answer, `ResponseCompleted` reports beginning and end.

    Published by the edge. Schedulers confirm the reservation; any other reader may follow.
    """

    address: ClassVar[Address] = Address("evt", "response", "started", route=("pool",))

    pool: str
    worker: str
    attempt: int = always(1)
    ttft_ms: float
    """From sending to the endpoint until the first byte of the answer's body."""
    handed_ms: float | None = None
    """From the end of the leg in which another engine computed the prompt until that byte; None where the endpoint
    computed the prompt itself, or where that end is unknown."""
    decision: int = always(1)
    """The number of the decision that chose the worker (`PreprocessRequest.decision`)."""


class AttemptFailed(RequestEvent, frozen=True, kw_only=True):
    """An endpoint didn't answer; the edge goes on to the next one, if there is one. Published by the edge.
    Schedulers take the reservation and its prefix entries back and judge the endpoint by it; any other reader may
    follow."""

    address: ClassVar[Address] = Address("evt", "response", "attempt-failed", route=("pool",))

    pool: str
    worker: str
    boot_id: str = always("")
    outcome: str
    """The outcome of the attempt."""
    status: int | None = None
    next_worker: str | None = None
    """Where the edge sends it next; None when it gives up."""
    leg: str = always("")
    """Empty for an endpoint that was to answer; otherwise the part of the work that the worker was to do, e.g.
    `prefill`."""
    decision: int = always(1)
    """The number of the decision that chose the worker. The reservation of a later one stays."""


class StageEnded(RequestEvent, frozen=True, kw_only=True):
    """A request ended at a stage, before any endpoint was tried."""

    stage: str
    """Service that ended it; `edge` for the edge itself."""
    status: int
    model: str | None = None
    """The one that was chosen, or else the one that the client asked for, as far as it is known."""
    profile: str | None = None
    trail: tuple[StageReport, ...] = always(())


class RequestRejected(StageEnded, frozen=True, kw_only=True):
    """A request ended before any endpoint was tried. Published by the edge; for any reader."""

    address: ClassVar[Address] = Address("evt", "request", "rejected", route=("stage",))

    code: str | None = None
    reason: str
    """The message that the client got."""
    dropped_reason: str | None = None
    identity: Identity | None = None
    """None when no stage determined it."""


class RequestAnswered(StageEnded, frozen=True, kw_only=True):
    """A stage ended a request with an answer of its own, e.g. a cached one. Published by the edge; for any reader."""

    address: ClassVar[Address] = Address("evt", "request", "answered", route=("stage",))

    target: Target | None = None
    """The model that would have been asked."""
    level: str = always("full")
    reasons: tuple[str, ...] = always(())


class ResponseCompleted(RequestEvent, frozen=True, kw_only=True):
    """How a request ended: exactly one for every request that an edge accepted, whatever happened.

    Published by the edge; read by schedulers (releases the reservation), the metrics-collector, usage and audit.
    """

    address: ClassVar[Address] = Address("evt", "response", "completed", route=("pool",))

    pool: str
    """`-` when the request never had a pool."""
    worker: str | None = None
    """The endpoint that answered, or was tried last."""
    model: str | None = None
    target: Target | None = None
    """Who answered, or was tried last."""
    profile: str | None = None
    api: str = always("")
    stream: bool = always(False)
    status: int
    """HTTP status that the client got; 499 when it was gone before one could be sent."""
    outcome: str
    """`ok`, `rejected`, `client_gone`, `engine_error`, `cut_off`, `timeout`, `shutdown`, `blocked` (a stage on the way
    back didn't let the answer pass), `routed` (only the route was asked for; nothing was generated)."""
    reason: str = always("")
    level: str = always("full")
    attempts: tuple[Attempt, ...] = always(())
    decided_ms: float = always(0.0)
    """From receiving the request to having the decision."""
    ttft_ms: float | None = None
    """From receiving the request to the first byte of the answer's body."""
    duration_ms: float = always(0.0)
    """From receiving the request to its end."""
    usage: Usage | None = None
    """None when no model was at work for the client."""
    answers: Annotated[int, Meta(ge=1)] = always(1)
    """How many answers `usage` is of, as `RequestFacts.answers`: what teaches how long one gets divides by it."""
    identity: Identity | None = None
    """None when no stage determined it."""
    served: str | None = None
    """Name that the configuration knows the model by that `usage` is of."""
    cost: float | None = None
    """`cost_nanos` in dollars, rounded to a binary float: for readers of earlier versions."""
    cost_nanos: int | None = None
    """Cost of `usage`, in nano-dollars (a billionth of a dollar); None without a price."""
    answered_by: str | None = None
    """The stage that answered without asking a model."""
    saved: Usage | None = None
    """Usage that a model would have had for that response; not part of `usage`."""
    bytes_out: int = always(0)
    stages: tuple[StageReport, ...] = always(())
    """Reports of the stages that reviewed the response before the client had all of it, in order. `outcome` of each:
    `passed`, `replaced`, `blocked`, `skipped`, `failed`."""
    legs: tuple[LegReport, ...] = always(())
    """The parts of the work that other engines did for the endpoint that answered."""
    seams: tuple[Seam, ...] = always(())
    """Where other engines continued the stream, in order."""
    promise: ServicePromise | None = None
    """The service level of the request; None without one, and for a request that was wrong itself."""
    kept: bool | None = None
    """Whether the answer kept it; None where that is unknown, and without one."""
    unresumed: str | None = None
    """Why a stream that broke off wasn't continued, in a word; None where it didn't break off, or was."""
    answer_blocks: Blob | None = None
    """Hashes of the full blocks that continue those of the prompt with the answer, as `RequestFacts.blocks`, salted by
    the target. Set where a response processor has found them: `worker` has computed them."""
    confidence: AnswerConfidence | None = None
    """The confidence of the answer that the client got; None without a cascade. An `unconfident` one was given because
    no larger model answered."""
    unused: tuple[UnusedAnswer, ...] | None = None
    """The answers of the other models of a cascade. Their usage and cost aren't part of `usage` and `cost_nanos`;
    budgets and limits count all of them."""
    session: RequestSession | None = None
    """None for a request without one, or without a decision."""


class ResponseReviewed(RequestEvent, frozen=True, kw_only=True):
    """Reports of the stages that reviewed a response after its last byte. One event for each request with such stages,
    published by the edge when the last stage has replied or timed out. Read by recorders and auditors."""

    address: ClassVar[Address] = Address("evt", "response", "reviewed", route=("pool",))

    pool: str
    """`-` when the request never had a pool."""
    stages: tuple[StageReport, ...]
    """In order; the others' reports are in `ResponseCompleted.stages`. `outcome` of a report: `passed`, `replaced` and
    `blocked` (what it would have done: the client has everything), `shadow_passed`, `shadow_replaced`, `shadow_blocked`
    of a stage in shadow, `failed`. `took_ms` is from asking it until its answer was here."""
