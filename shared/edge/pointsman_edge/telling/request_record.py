"""The record of one request, filled while it is served. Times are monotonic seconds."""

from collections.abc import Callable

from msgspec.structs import replace

from pointsman_apis.api import Api
from pointsman_apis.usage import UsageTail
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.journey import HeaderEdit, StageReport, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.money import NANOS
from pointsman_contracts.reply import Answer, Decision, Rejection
from pointsman_contracts.response import Attempt, LegReport, ResponseCompleted, Seam, UnusedAnswer, Usage
from pointsman_core.refusal import Refusal
from pointsman_core.service_level import was_kept
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.taking_in.bodies import HeldBody
from pointsman_edge.telling.answer_followers import AnswerFollowers
from pointsman_edge.telling.settled_usage import BROKEN_OFF, doubtful, settled

NO_POOL = "-"
BATCH_TIER = "batch"
"""The service tier of lines of batches: `cost.tiers` may have a factor for it."""
CLIENT_GONE = 499
"""Status of a request whose client left before one could be sent (nginx's number)."""


class RequestRecord:
    """One request from its head to its end. Fields that aren't set yet are the class's."""

    held: HeldBody | None = None
    """The body, once it is complete."""
    traceparent: str | None = None
    """For the next step of the request's trace, once its head is understood."""
    reply: Decision | Rejection | Answer | None = None
    """The reply of the stages; an answer without its body."""
    decision: Decision | None = None
    decisions = 1
    """How many were asked for: as `PreprocessRequest.decision`."""
    rejection: Rejection | None = None
    answer: Answer | None = None
    """A stage's, without its body."""
    answer_headers: tuple[HeaderEdit, ...] = ()
    """The stages' edits of the headers of any answer."""
    level = "full"
    pool = NO_POOL
    worker: str | None = None
    """The engine or provider that was tried last."""
    target: Target | None = None
    """Where the request was tried last."""
    attempts: tuple[Attempt, ...] = ()
    legs: tuple[LegReport, ...] = ()
    seams: tuple[Seam, ...] = ()
    unresumed: str | None = None
    cascaded = False
    """Whether a cascade chooses its model."""
    confidence: AnswerConfidence | None = None
    """The confidence of the answer that the client gets."""
    reported: Callable[[], None] | None = None
    """Called once the stream has the end of a batch's line, or can't take one so large; None for any other request."""
    makeshift = False
    """The client gets an answer that isn't confident, because no larger model answered."""
    unused: tuple[UnusedAnswer, ...] = ()
    decided_s = 0.0
    queued_ms = 0.0
    """Milliseconds that it waited in flow control and for its engine, in all decisions so far."""
    first_byte_at: float | None = None
    duration_ms: float | None = None
    """From receiving the request to its end; None while it is open."""
    stream = False
    mirrored = False
    """It says that it is a mirror's copy of another request."""
    bytes_out = 0
    tail: UsageTail | None = None
    """Reads the usage of the answer that an endpoint began."""
    followers: AnswerFollowers | None = None
    """The response processors at work on that answer."""
    answer_blocks: Blob | None = None
    usage: Usage | None = None
    """Usage reported beside the answer; once settled, the usage of the request."""
    served: str | None = None
    """The configuration's name of the model that was at work."""
    cost: float | None = None
    """In dollars."""
    cost_nanos: int | None = None
    """In billionths of a dollar."""
    status = 0
    outcome: str | None = None
    reason = ""
    code: str | None = None
    """The code of the gateway's own error that the client got."""
    stages: tuple[StageReport, ...] = ()
    """Reports of the response stages."""

    def __init__(self, request_id: str, api: Api, policy: EdgePolicy, now: float) -> None:
        self.request_id = request_id
        self.api = api
        self.policy = policy
        """The revision that was current when the request began."""
        self.received_at = now
        """When the head arrived; moved to the moment at which the whole request was there."""

    def record_decision(self, decision: Decision, now: float) -> None:
        """The stages, or the edge alone, decided."""
        self.reply = self.decision = decision
        self.answer_headers = decision.answer_headers
        self.target = decision.target
        self.level = decision.level
        self.pool = decision.target.pool or NO_POOL
        self.decided_s = now - self.received_at
        if decision.queued_ms:
            self.queued_ms += decision.queued_ms

    def rejected_by(self, rejection: Rejection, now: float) -> None:
        """A stage ended the request."""
        self.reply = self.rejection = rejection
        self.answer_headers = rejection.answer_headers
        self.decided_s = now - self.received_at
        if rejection.target is not None and rejection.target.pool is not None:
            self.pool = rejection.target.pool

    def answered_by(self, answer: Answer, now: float) -> None:
        """A stage ended the request with an answer of its own."""
        self.reply = self.answer = replace(answer, body=b"")
        self.answer_headers = answer.answer_headers
        self.target = answer.target
        self.level = answer.level
        self.stream = answer.stream
        self.usage = answer.usage
        self.decided_s = now - self.received_at
        if answer.target is not None and answer.target.pool is not None:
            self.pool = answer.target.pool

    @property
    def body(self) -> bytes:
        """The body as the stages left it, before the decision's own edits; empty before it is complete."""
        return b"" if self.held is None else self.held.current

    @property
    def model(self) -> str | None:
        """The model that the client asked for; None before a stage has named it."""
        reply = self.reply
        return None if reply is None else reply.model

    def record_attempt(self, worker: str, outcome: str, status: int | None, took_s: float, *, reason: str = "") -> None:
        """An attempt has ended."""
        decision = self.decision
        several = decision is not None and (decision.alternatives or decision.target.provider is not None)
        attempt = Attempt(
            worker=worker,
            outcome=outcome,
            status=status,
            took_ms=round(took_s * 1e6) / 1e3,
            target=self.target if several or self.cascaded else None,
            reason=reason,
            limited_until_ms=None,
            remaining=None,
        )
        self.attempts = (*self.attempts, attempt)

    def limited(self, until_ms: int | None, remaining: float | None) -> None:
        """Record the limits that the provider of the last attempt reported."""
        if until_ms is not None or remaining is not None:
            *before, last = self.attempts
            last = replace(last, limited_until_ms=until_ms, remaining=remaining)
            self.attempts = (*before, last)

    def end(self, outcome: str, status: int, reason: str = "", code: str | None = None) -> None:
        """Record how the request ended, and the `code` of the gateway's own error. Only the first call counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.status = status
            self.reason = reason
            self.code = code

    def record_all_failed(self, refusal: Refusal, sent: int | None = None) -> None:
        """Record that every endpoint that was tried failed; `sent` is the status that the client has already."""
        outcome = "timeout" if refusal.status == 504 else "engine_error" if refusal.status >= 500 else "rejected"
        self.end(outcome, sent or refusal.status, refusal.detail, refusal.told_code)

    def settle(self) -> None:
        """Set the usage and cost of the request, which has ended. Raises OverflowError for usage that no engine has."""
        decision, tail, target = self.decision, self.tail, self.target
        # A provider's own report has more than what is written for the client.
        usage = self.usage or (tail.read_usage() if tail is not None else None)
        if decision is not None and (usage is None or self.outcome != "ok" or doubtful(usage)):
            usage = settled(
                api=self.api,
                outcome=self.outcome or "",
                status=self.status,
                tail=tail,
                reported=usage,
                prompt_tokens=decision.prompt_tokens,
                sent=self.worker is not None,
                chunked=decision.promise is not None and decision.promise.itl_ms is not None,
            )
        identity = None if self.reply is None else self.reply.identity
        batch = "" if identity is None else identity.batch
        if batch and self.outcome in BROKEN_OFF:
            # Its batch sends it again, and the answer that comes then is charged.
            usage = None
        self.usage = usage
        if usage is not None and target is not None:
            prices = self.policy.prices
            self.served = served = prices.find_name(target, decision.model if decision is not None else None)
            price = prices.of.get(served)
            if price is not None:
                tier = "" if not price.tiers else BATCH_TIER if batch else "" if tail is None else tail.service_tier()
                self.cost_nanos = cost = price.cost_of(usage, tier)
                self.cost = cost / NANOS

    @property
    def ttft_ms(self) -> float | None:
        """From receiving the request to the first byte of the answer's body."""
        first = self.first_byte_at
        return None if first is None else round((first - self.received_at) * 1e6) / 1e3

    def make_completion(self, source: str, sequence: int, at_ms: int, now: float) -> ResponseCompleted:
        """The event."""
        reply, decision, answer = self.reply, self.decision, self.answer
        target, promise = self.target, None if reply is None or isinstance(reply, Answer) else reply.promise
        model = profile = identity = None
        if decision is not None:
            model, profile, identity = decision.model, decision.profile or None, decision.identity
        elif reply is not None:
            profile, identity, target = reply.profile or None, reply.identity, reply.target
            if self.rejection is None or promise is not None:
                model = reply.model
        duration_ms = self.duration_ms = round((now - self.received_at) * 1e6) / 1e3
        completed = ResponseCompleted(
            request_id=self.request_id,
            source=source,
            sequence=sequence,
            at_ms=at_ms,
            pool=self.pool,
            worker=self.worker,
            model=model,
            target=target,
            profile=profile,
            api=self.api.name,
            stream=self.stream,
            status=self.status,
            outcome=self.outcome or "engine_error",
            reason=self.reason,
            level=self.level,
            attempts=self.attempts,
            # Rounding to a whole number takes a fifth of the time of rounding to three decimals.
            decided_ms=round(self.decided_s * 1e6) / 1e3,
            ttft_ms=self.ttft_ms,
            duration_ms=duration_ms,
            usage=self.usage,
            answers=1 if decision is None else decision.answers,
            identity=identity,
            served=self.served,
            cost=self.cost,
            cost_nanos=self.cost_nanos,
            answered_by=None if answer is None else answer.stage,
            saved=None if answer is None else answer.saved,
            bytes_out=self.bytes_out,
            stages=self.stages,
            legs=self.legs,
            seams=self.seams,
            unresumed=self.unresumed,
            answer_blocks=self.answer_blocks,
            session=None if decision is None else decision.session,
        )
        if self.cascaded:
            completed = replace(completed, confidence=self.confidence, unused=self.unused or None)
        if promise is None:
            return completed
        return replace(completed, promise=promise, kept=was_kept(promise, completed))
