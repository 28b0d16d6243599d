"""Has other engines continue a stream whose engine broke off. `domain.resuming` decides what they are asked, and joins
what they answer."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from pointsman_apis.usage import UsageTail
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.response import Seam
from pointsman_edge.edge import Edge
from pointsman_edge.sending.encoded_answer import ENCODINGS
from pointsman_edge.sending.moving_on import DRAINED, FAILED, failed_workers
from pointsman_edge.sending.retry_budget import RetryBudget
from pointsman_edge.sending.unasked_usage import Rewriting
from pointsman_frontend.adapters.attempt_reports import AttemptReports
from pointsman_frontend.adapters.decoded_answer import DecodedAnswer
from pointsman_frontend.adapters.engine_call import engine_call, rest_call
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.adapters.relay import Answering, ResponseWriter, end_cut_off
from pointsman_frontend.domain.resuming.joining import NotTheRest
from pointsman_frontend.domain.resuming.question import CantContinue, Question
from pointsman_frontend.domain.resuming.resuming import Resuming, resuming_of, token_ids_of
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.telemetry import NO_SPAN

CUT_OFF: Final = "cut_off"
NO_ENGINE: Final = "no_engine"
"""Reason of streams that no further engine was left for."""
_NEVER: Final = "never"
_ERROR: Final = 400
_CONTENT_ENCODING: Final = b"content-encoding"

_log = Log("engines")

Ask = Callable[[Question], Awaitable[Answering]]
"""Sends a question; raises EndpointFailed."""


class StreamBroken(EndpointFailed):
    """A stream broke off that another engine may continue. `rewriting`: changes its events."""

    def __init__(self, cut: AnswerCutOff, rewriting: Rewriting | None) -> None:
        super().__init__(DRAINED if cut.outcome == DRAINED else CUT_OFF, str(cut), 200)
        self.cut: Final = cut
        self.rewriting: Final = rewriting
        self.at: Final = time.monotonic()


class DecideAgain(Protocol):
    """Gives an endpoint of a new decision; `free`: the request leaves a drained engine."""

    def __call__(self, *, free: bool) -> Awaitable[ChosenEndpoint | None]: ...


class Begins(Protocol):
    """Called once with the question that an engine has begun to answer."""

    def __call__(self, question: Question) -> None: ...


class ResumedStreams:
    """Those of one edge."""

    def __init__(self, edge: Edge, engines: EngineClient, reports: AttemptReports) -> None:
        self._edge = edge
        self._engines = engines
        self._reports = reports
        self._longest: dict[str, int] = {}
        """The longest sequence of each engine in tokens, by URL."""

    def prepare_resuming(self, request: Outgoing, endpoint: ChosenEndpoint) -> Resuming | None:
        """For a request that is about to be sent to an engine; None where its stream can't be continued."""
        record, decision = request.record, request.decision
        profile = record.policy.config.profiles.get(decision.profile)
        if profile is None or profile.resume == "off" or not profile.resume_attempts:
            return None
        exact = profile.resume == "exact"
        if (exact and decision.token_ids == _NEVER) or record.held is None or endpoint.target is not None:
            return None
        body = record.held.current
        resuming = resuming_of(
            api=record.api,
            body=body,
            setting=profile.resume,
            attempts=profile.resume_attempts,
            kind=self._edge.engine_of(record.pool, endpoint.worker),
            ids=decision.token_ids or token_ids_of(record.api, body),
            one=decision.answers == 1,
        )
        if resuming is not None:
            resuming.sent = partial(_sent_body, request, endpoint)
        return resuming

    def broken(self, request: Outgoing, cut: AnswerCutOff, rewriting: Rewriting | None) -> StreamBroken | None:
        """The failure of a stream that another engine may continue; None where none can."""
        resuming, record = request.resuming, request.record
        if resuming is None or not request.client.started or record.outcome is not None:
            return None
        try:
            resuming.break_off()
        except CantContinue as unable:
            self._give_up(request, unable.reason)
            return None
        return StreamBroken(cut, rewriting)

    async def carry_on(
        self,
        request: Outgoing,
        broken: StreamBroken,
        left: list[ChosenEndpoint],
        budget: RetryBudget,
        decided_again: "DecideAgain",
    ) -> None:
        """Have other engines continue the stream; end it with an error if none does. `left`: the further endpoints of
        the decision. `decided_again`: gives one of a new decision."""
        record = request.record
        resuming = request.resuming
        failure: EndpointFailed = broken
        reason = NO_ENGINE
        while resuming is not None and record.outcome is None:
            following = None
            drained = failure.outcome == DRAINED
            if drained:
                # It is the gateway that moves the stream: that takes neither attempts nor budget.
                following = await self._engine_for_drained(request, resuming, left, decided_again)
            elif resuming.attempts_left:
                following = self._next_engine(request, resuming, left, budget)
                if following is None:
                    again = await decided_again(free=False)
                    following = again if again is not None and self._may_take(request, resuming, again) else None
            self._reports.report_failure(record, failure, following)
            if following is None:
                break
            resuming.attempts_left -= not drained
            try:
                await self._try(request, resuming, following, broken)
            except EndpointFailed as failed:
                failure = failed
            except CantContinue as unable:
                reason = unable.reason
                break
            else:
                record.end("ok", 200)
                return
        self._give_up(request, reason)
        await end_cut_off(record, request.client, 200, broken.cut)

    def _give_up(self, request: Outgoing, reason: str) -> None:
        record = request.record
        record.unresumed = reason
        self._edge.metrics.unresumed[reason] += 1

    def _may_take(self, request: Outgoing, resuming: Resuming, endpoint: ChosenEndpoint) -> bool:
        """Whether an endpoint can be asked for the rest: an engine of the same model that hasn't failed the request."""
        if endpoint.target is not None or not endpoint.url:
            return False
        record, worker = request.record, endpoint.worker
        if worker in failed_workers(record.attempts) or self._edge.draining.is_draining(record.pool, worker):
            return False
        return resuming.can_ask(self._edge.engine_of(record.pool, worker))

    async def _engine_for_drained(
        self, request: Outgoing, resuming: Resuming, left: list[ChosenEndpoint], decided_again: "DecideAgain"
    ) -> ChosenEndpoint | None:
        """The engine for a stream that leaves a drained one: of a new decision, or else of the last one, or by this
        edge's own knowledge."""
        again = await decided_again(free=True)
        if again is not None and self._may_take(request, resuming, again):
            return again
        record = request.record
        able = [endpoint for endpoint in left if self._may_take(request, resuming, endpoint)]
        if able:
            left.remove(able[0])
            return able[0]
        other = self._edge.find_engine(record.pool, request.decision.target, failed_workers(record.attempts))
        return other if other is not None and self._may_take(request, resuming, other) else None

    def _next_engine(
        self, request: Outgoing, resuming: Resuming, left: list[ChosenEndpoint], budget: RetryBudget
    ) -> ChosenEndpoint | None:
        able = [endpoint for endpoint in left if self._may_take(request, resuming, endpoint)]
        if not able or not budget.spend(time.monotonic()):
            return None
        unwell = self._edge.unwell_workers(request.record.pool)
        following = min(able, key=lambda each: self._edge.is_avoided(each.worker) + (each.worker in unwell))
        left.remove(following)
        return following

    async def _try(self, request: Outgoing, resuming: Resuming, endpoint: ChosenEndpoint, broken: StreamBroken) -> None:
        """Have one engine continue the stream to its end. Raises EndpointFailed and CantContinue."""
        record, before = request.record, request.record.attempts[-1].worker
        record.worker = endpoint.worker
        sent_at = time.monotonic()
        span = NO_SPAN
        if record.traceparent is not None:
            span = self._reports.begin_span(record, record.traceparent, endpoint, request.decision.target)
        problem: str | None = "aborted"
        self._edge.load.begin_attempt(endpoint.worker)

        def begins(question: Question) -> None:
            now = time.monotonic()
            self._edge.events.publish_start(record, endpoint.worker, now - sent_at)
            seam = Seam(
                worker=before,
                next_worker=endpoint.worker,
                form=question.form,
                at_ms=round((broken.at - record.received_at) * 1e6) / 1e3,
                gap_ms=round((now - broken.at) * 1e6) / 1e3,
                kept_tokens=question.kept,
                computed_again=len(question.sent) or request.decision.prompt_tokens + question.kept,
            )
            record.seams = (*record.seams, seam)
            self._edge.metrics.count_seam(seam)
            _log.info(
                "stream_resumed", request_id=record.request_id, worker=endpoint.worker, before=before, form=seam.form
            )

        connections = _Connections(self._engines, request, endpoint, span.traceparent)
        try:
            longest = await self._longest_of(connections, endpoint.url) if resuming.is_open_ended else None
            usage = record.tail or record.api.usage()
            rest = RestOfStream(resuming, request.client, usage, broken.rewriting, request.decision.prompt_tokens)
            await rest.relay_to_end(connections.ask_rest, begins, longest)
            problem = None
            record.record_attempt(endpoint.worker, "answered", 200, time.monotonic() - sent_at)
        except EndpointFailed as failed:
            problem = failed.outcome
            took_s = time.monotonic() - sent_at
            record.record_attempt(endpoint.worker, failed.outcome, failed.status, took_s, reason=failed.detail)
            raise
        finally:
            connections.give_back()
            self._edge.load.end_attempt(endpoint.worker)
            if span is not NO_SPAN and span.is_recording:
                span.end_span(problem, error__type=problem)

    async def _longest_of(self, connections: "_Connections", url: str) -> int:
        """The longest sequence of an engine in tokens. Raises EndpointFailed where it doesn't say."""
        known = self._longest.get(url)
        if known is None:
            known = self._longest[url] = longest_sequence(await connections.ask_models())
        return known


def _sent_body(request: Outgoing, endpoint: ChosenEndpoint) -> bytes:
    return engine_call(request, endpoint, None, (), movable=False).body


class RestOfStream:
    """Passes the rest of one stream on, from one engine."""

    def __init__(
        self,
        resuming: Resuming,
        client: ResponseWriter,
        usage: UsageTail,
        rewriting: Rewriting | None,
        prompt_tokens: int,
    ) -> None:
        """`usage`: reads the stream that the client gets. `prompt_tokens`: as the stages counted them."""
        self._resuming = resuming
        self._client = client
        self._usage = usage
        self._rewriting = rewriting
        self._prompt_tokens = prompt_tokens

    async def relay_to_end(self, ask: Ask, begins: Begins, longest: int | None) -> None:
        """Have the choices that haven't ended continued, one after the other, and end the stream. Raises EndpointFailed
        and CantContinue."""
        resuming = self._resuming
        # The bytes of an event that broke off aren't part of the next one.
        self._usage.follow_bytes(b"\n\n")
        for index in resuming.open_choices():
            ended = False
            while not ended:
                question = resuming.next_question(index, longest)
                if question is None:
                    await self._write(resuming.kept.keep_events(self._counted(resuming.end_choice(index))))
                    break
                ended = await self._relay_choice(question, await ask(question), begins)
                begins = _nothing if ended else begins
        end = self._counted(resuming.end_stream(self._prompt_tokens))
        await self._client.end(end if self._rewriting is None else self._rewriting.rewrite_bytes(end))

    async def _relay_choice(self, question: Question, engine: Answering, begins: Begins) -> bool:
        """Whether the choice has ended; otherwise the engine is asked again, from an earlier point."""
        resuming = self._resuming
        rest = resuming.read_rest(question)
        begun = False
        try:
            while not rest.finished:
                data = await engine.read()
                if not data:
                    break
                joined = rest.join(data)
                if joined:
                    if not begun:
                        begun = True
                        begins(question)
                    await self._write(resuming.kept.keep_events(self._counted(joined)))
            if question.form == "text":
                # The engine's count of the tokens comes last.
                while data := await engine.read():
                    rest.join(data)
        except NotTheRest as failure:
            if not begun and failure.echo and resuming.step_back():
                return False
            raise EndpointFailed(FAILED, str(failure)) from None
        except AnswerCutOff as cut:
            if not rest.finished:
                drained = cut.outcome == DRAINED
                raise EndpointFailed(CUT_OFF if begun and not drained else cut.outcome, str(cut)) from None
        finally:
            resuming.end_question(question, rest)
        if not rest.finished:
            raise EndpointFailed(CUT_OFF if begun else FAILED, "the stream ended early")
        return True

    def _counted(self, data: bytes) -> bytes:
        self._usage.follow_bytes(data)
        return data

    async def _write(self, data: bytes) -> None:
        await self._client.write(data if self._rewriting is None else self._rewriting.rewrite_bytes(data))


def _nothing(question: Question) -> None:
    del question


class _Connections:
    """The connections of one attempt, one after the other."""

    def __init__(
        self, engines: EngineClient, request: Outgoing, endpoint: ChosenEndpoint, traceparent: str | None
    ) -> None:
        self._engines = engines
        self._request = request
        self._endpoint = endpoint
        self._traceparent = traceparent
        self._release: Callable[[], None] | None = None

    async def ask_rest(self, question: Question) -> Answering:
        """Send a question. Raises EndpointFailed, for every error too."""
        body = msgspec.json.encode(question.body)
        return await self._send(b"POST", question.path.encode("ascii"), body)

    async def ask_models(self) -> bytes:
        """The engine's list of models. Raises EndpointFailed."""
        engine = await self._send(b"GET", b"/v1/models", b"")
        pieces: list[bytes] = []
        try:
            while data := await engine.read():
                pieces.append(data)
        except AnswerCutOff as cut:
            raise EndpointFailed(cut.outcome, str(cut)) from None
        return b"".join(pieces)

    async def _send(self, method: bytes, path: bytes, body: bytes) -> Answering:
        self.give_back()
        call = rest_call(self._request, self._endpoint, self._traceparent, method=method, path=path, body=body)
        engine = await self._engines.send(call, self._request.record.policy.engine)
        self._release = lambda: self._engines.release_connection(engine)
        if engine.status >= _ERROR:
            raise EndpointFailed(FAILED, f"answered {engine.status}", engine.status)
        encoding = dict(engine.headers).get(_CONTENT_ENCODING, b"")
        return DecodedAnswer(engine) if encoding.strip().lower() in ENCODINGS else engine

    def give_back(self) -> None:
        """Give the last connection back."""
        release, self._release = self._release, None
        if release is not None:
            release()


class _Model(msgspec.Struct):
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = msgspec.field(default_factory=list[_Model])


def longest_sequence(document: bytes) -> int:
    """The longest sequence that a list of models names, in tokens. Raises EndpointFailed where it names none."""
    try:
        lengths = [each.max_model_len for each in msgspec.json.decode(document, type=_Models).data]
    except msgspec.DecodeError:
        lengths = []
    known = [length for length in lengths if length]
    if not known:
        raise EndpointFailed(FAILED, "doesn't say how long a sequence may be")
    return min(known)
