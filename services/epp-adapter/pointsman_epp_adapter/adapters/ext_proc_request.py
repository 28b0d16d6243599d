"""One request that Envoy asks about: a POST to an API's path, or a request that no path takes."""

import time
from collections.abc import Iterable

from pointsman_apis.paths import Route
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Answer, Decision
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.requested_model import requested_model
from pointsman_edge.request import EdgeRequest
from pointsman_edge.reviewing.answer_review import Headers
from pointsman_edge.sending.engine_tokens import token_edits
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.sending.model_in_path import without_model
from pointsman_edge.sending.own_answers import OUTCOME, Place, answer_body, answer_headers
from pointsman_edge.sending.rank import rank_edits
from pointsman_edge.taking_in.bodies import check_presence, edited_body
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.request_record import CLIENT_GONE
from pointsman_epp_adapter.adapters import engine_request, wire
from pointsman_epp_adapter.adapters.awaited_answer import AwaitedAnswer
from pointsman_epp_adapter.adapters.engine_answer import EngineAnswer
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.provider_answer import ProviderAnswer
from pointsman_epp_adapter.adapters.stream import EnvoyGone, ProtocolViolation, Stream, WholeBody
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import BodyMode, RequestHead
from pointsman_epp_adapter.domain.protocol_headers import told
from pointsman_epp_adapter.domain.unseen_answers import without_cascade, without_response_stages


class ExtProcRequest(EdgeRequest):
    """One request on one stream. `run` raises EnvoyGone and ProtocolViolation after the request has ended."""

    __slots__ = ("_answer", "_envoy", "_head", "_refusal", "_sees_answer", "_stream")

    interruptions = (EnvoyGone, ProtocolViolation)

    def __init__(
        self,
        envoy: EnvoyEdge,
        stream: Stream,
        head: RequestHead,
        method: str,
        requested: Route,
        refusal: Refusal | None,
    ) -> None:
        """`refusal`: why no path takes the request."""
        super().__init__(envoy.edge, method, requested, head.headers)
        self._envoy = envoy
        self._stream = stream
        self._head = head
        self._refusal = refusal
        self._answer: AwaitedAnswer | None = None
        self._sees_answer = head.response_mode is not BodyMode.NONE

    @property
    def sent_status(self) -> int | None:
        """Like `EdgeRequest.sent_status`: Envoy takes an error instead as long as it is asked."""
        return None

    async def serve(self) -> None:
        """Read the request, have it decided, send it, and pass the answer on."""
        if self._refusal is not None:
            raise self._refusal
        head, edge, record = self._head, self.edge, self.record
        headers = self.take_in(head.sent_headers, trusted=self.edge.trusted.is_trusted(head.peer))
        whole = await self._stream.read_body(head, record.policy.limits.max_body)
        body, asked = whole.data, ""
        if self.codings:
            body = await self._stream.listen_while(self.decode(body))
        check_presence(body, record.api.body)
        stages, rewrite = told(headers.stages, head.subset)
        if rewrite is not None:
            asked = "" if record.api.passed else requested_model(body)
            body = edited_body(body, (BodyEdit(field="model", value=rewrite),), None)
        seeking = self.seek_response(body)
        if seeking is not None:
            await self._stream.listen_while(seeking)
        question = self.complete_body(body, stages, headers, head.peer, None if body else rewrite)
        deciding = edge.decider.decide(question, body, record.policy, record.traceparent)
        reply = await self._stream.listen_while(deciding)
        if isinstance(reply, Decision) and not self._sees_answer:
            reply = without_response_stages(reply, record.policy.postprocessing)
        if isinstance(reply, Decision) and reply.cascade is not None:
            reply = without_cascade(reply)
        reply = self.record_reply(reply)
        if isinstance(reply, Answer):
            await self._give(reply)
            return
        if headers.routing:
            await self._tell_route(reply)
            return
        asked = asked or reply.model
        if reply.target.provider is not None:
            answer = self._answer = await self._to_provider(reply, whole, headers, asked)
        else:
            answer = self._answer = await self._to_engine(reply, whole, headers, asked)
        await answer.run(self._stream)

    async def answer(self, status: int, headers: Headers, body: bytes, details: str) -> None:
        """Send a whole response."""
        record = self.record
        headers = edited_answer_headers(headers, record.answer_headers)
        await self._stream.write(wire.answer(status, headers, body, record.request_id, details))

    def keep_alive(self, now: float) -> None:
        """Keep the client's connection open, if its stream has been silent for too long; `now` is monotonic."""
        if self._answer is not None:
            self._answer.keep_alive(now)

    async def interrupted(self, interruption: BaseException) -> None:
        """Implements `EdgeRequest.interrupted`."""
        if isinstance(interruption, ProtocolViolation):
            self.record.end("rejected", 500, str(interruption))
        elif self._answer is None:
            self.record.end("client_gone", CLIENT_GONE)
        raise interruption

    def closed(self) -> None:
        """The request has ended, and can't be interrupted any more: record the facts that are only known now."""
        if self._answer is not None:
            self._answer.close()
            self.reviewed_after = self._sees_answer
        self.record.end("shutdown" if self._envoy.stopping.is_set() else "client_gone", CLIENT_GONE)

    async def _to_engine(
        self, decision: Decision, whole: WholeBody, headers: ClientHeaders, asked: str
    ) -> EngineAnswer:
        """Have Envoy send the request to an engine. `asked` is the model's name for the client."""
        envoy, head, record, policy = self._envoy, self._head, self.record, self.record.policy
        chosen = engine_request.chosen(envoy, record, decision, head)
        body = record.body
        tokens = None if record.held is None else record.held.tokens
        edits = token_edits(
            config=policy.config, target=decision.target, api=record.api, body=body, edits=decision.body, tokens=tokens
        )
        if self.requested.model is not None:
            edits = without_model(edits)
        if chosen[0].rank is not None:
            edits = (*edits, *rank_edits(engine_request.endpoint_at(decision, chosen[0])))
        body = edited_body(body, edits, None)
        review = self.edge.response_stages.begin_review(self, decision) if self._sees_answer else None
        followed = decision.profile in policy.response_processors
        counted = envoy.settings.stream_usage or policy.counts_tokens or followed or decision.promise is not None
        reviewed = review is not None and (review.blocks or review.keeps)
        seen = counted or reviewed or engine_request.rewritten(decision, asked)
        mode = engine_request.answer_mode(self._stream, head, whole, body, record.api, seen=seen)
        requested = self.requested
        messages = engine_request.messages(
            envoy=envoy,
            record=record,
            decision=decision,
            found=chosen,
            head=head,
            headers=headers,
            requested=requested,
            whole=whole,
            body=body,
            mode=mode,
        )
        await self._tell(whole, messages)
        return EngineAnswer(
            envoy=envoy,
            record=record,
            mode=mode,
            decision=decision,
            chosen=chosen,
            asked=asked,
            review=review,
            counted=counted,
        )

    async def _to_provider(
        self, decision: Decision, whole: WholeBody, headers: ClientHeaders, asked: str
    ) -> ProviderAnswer:
        """Have Envoy send the request to a provider. `asked` is the model's name for the client."""
        record, mode, providers = self.record, self._head.response_mode, self._envoy.providers
        sent = providers.build_request(record, decision, asked, self._head, headers.engine)
        await self._tell(whole, await providers.build_messages(record, sent, self._head, whole))
        return ProviderAnswer(self._envoy, record, mode, sent, self.edge.response_stages.begin_any(self, decision))

    async def _tell_route(self, decision: Decision) -> None:
        """Answer a client that asks for the route alone."""
        chosen = engine_request.chosen(self._envoy, self.record, decision, self._head)
        headers, document = self.route(decision, [Place(each.worker, each.address) for each in chosen])
        await self.answer(200, headers, document, OUTCOME)

    async def _give(self, answer: Answer) -> None:
        """Answer with the answer of a stage, which the response stages review as a whole."""
        headers, body = answer_headers(answer), answer_body(answer)
        review = self.edge.response_stages.begin_review(self, answer)
        if review is not None:
            headers, body = await review.given(answer.status, headers, body, stream=answer.stream)
            review.note_sent_bytes(body)
        self.record.first_byte_at = time.monotonic()
        self.record.bytes_out = len(body)
        await self.answer(answer.status, headers, body, answer.stage)
        self.end_with_answer(answer)

    async def _tell(self, whole: WholeBody, messages: Iterable[bytes]) -> None:
        await self._stream.write_all(messages)
        if whole.trailers:
            await self._stream.write(CONTINUE["request_trailers"])
