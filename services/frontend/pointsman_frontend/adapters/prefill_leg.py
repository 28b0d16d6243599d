"""Has another engine compute the prompt before, or while, the endpoint that answers gets the request.

Whatever goes wrong with it, that endpoint computes the prompt itself, once.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import ChosenEndpoint, PrefillLeg
from pointsman_contracts.response import LegReport
from pointsman_core.engine_url import SCHEME
from pointsman_edge.edge import Edge
from pointsman_edge.sending.moving_on import FAILED, STALLED, failure_of
from pointsman_edge.sending.rank import place_of
from pointsman_engines.transfers import (
    PREFILL,
    LegOutcome,
    NothingCarried,
    Pauses,
    SharedPrompt,
    computes_prompts,
    share,
)
from pointsman_frontend.adapters.engine_call import engine_call
from pointsman_frontend.adapters.engine_client import EngineClient
from pointsman_frontend.adapters.engine_connection import EndpointFailed
from pointsman_frontend.adapters.kept_answer import whole_answer
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_runtime.telling.logs import Log

MOST_BYTES: Final = 2**24
"""The longest answer of a prefill leg; TensorRT-LLM's has the tokens of the prompt."""
PART_OF_TIME: Final = 0.5
"""Its part of the time that the request has left: the rest is for an endpoint that must compute the prompt after
all."""
GRACE_S: Final = 1.0
KEPT_S: Final = 20.0
"""An engine keeps a prompt for another one: vLLM's `kv_lease_duration` is 30 s, from which a step and the way are
taken."""
_CLIENT_ERROR: Final = 400
_BUSY: Final = 503
UNSUPPORTED: Final = "unsupported"
_FOR_SIDECARS: Final = frozenset({b"x-prefiller-host-port", b"x-prefiller-rank", b"x-encoder-hosts-ports"})

_log = Log("engines")


class PrefillLegs:
    """The first legs of requests whose prompt is computed elsewhere."""

    def __init__(self, edge: Edge, engines: EngineClient) -> None:
        self._edge: Final = edge
        self._engines: Final = engines
        self._counts: Final = edge.metrics.prefill_legs
        self._pauses: Final = Pauses()
        self._beside: Final[dict[str, asyncio.Task[None]]] = {}
        """Legs that run beside the one that answers, by request."""
        self._under_way: Final[dict[str, tuple[str, str]]] = {}
        """Requests that wait for their first leg: the worker that is to answer, and the one that is asked."""

    def leave(self, worker: str, request_ids: Collection[str], reason: str) -> list[str]:
        """Abort the request; one that still waits for its first leg aborts that leg."""
        found = ((name, self._edge.open.get(name)) for name in request_ids)
        silent = {name for name, each in found if each is not None and each.record.first_byte_at is None}
        left = self._engines.leave(worker, request_ids, reason, silent)
        for request_id, (answering, asked) in list(self._under_way.items()):
            if answering == worker and request_id in request_ids:
                left += self._engines.leave(asked, (request_id,), reason)
        return left

    async def carry(self, request: Outgoing, endpoint: ChosenEndpoint) -> tuple[BodyEdit, ...]:
        """The changes of the body for the endpoint that answers; empty where it computes the prompt itself. The leg is
        sent once a request: another endpoint gets what it left only if no other one had it. Raises EndpointFailed
        where the endpoint can't compute the prompt and no other engine does."""
        # They are for a sidecar, whose work this edge does.
        request.headers = [header for header in request.headers if header[0] not in _FOR_SIDECARS]
        if request.carried is None:
            request.carried = await self._begin(request, endpoint)
        elif request.carried and (prefill := request.decision.prefill) is not None and _expired(request):
            request.carried = ()
            self._report_lost(request, prefill, endpoint, "would fetch blocks that may be freed by now")
        return request.carried

    def lost(self, request: Outgoing, endpoint: ChosenEndpoint, failure: EndpointFailed) -> bool:
        """The attempt of an endpoint that was to fetch the prompt failed. True when that may be the reason: the same
        endpoint is asked again, and computes the prompt."""
        prefill = request.decision.prefill
        if prefill is None or failure.outcome == "refused":
            return False  # no endpoint has the prompt yet: the next one may fetch it
        request.carried = ()
        beside = self._beside.pop(request.record.request_id, None)
        if not computes_prompts(prefill.engine):
            # Another decision may name another engine for the prompt.
            request.carried = None
            if beside is not None and not beside.cancel() and failure.outcome == STALLED:
                # The other engine's fault, which isn't counted against this one.
                failure.outcome, failure.status = UNSUPPORTED, _BUSY
                *before, last = request.record.attempts
                last = msgspec.structs.replace(last, outcome=UNSUPPORTED, status=_BUSY)
                request.record.attempts = (*before, last)
            return False
        if failure.outcome != FAILED or failure.status in (None, _BUSY):
            return False
        self._report_lost(request, prefill, endpoint, failure.detail)
        return True

    def waited_for(self, request: Outgoing) -> bool:
        """Whether the endpoint that answers waits for a leg that may yet fail."""
        return request.record.request_id in self._beside

    def ended(self, request: Outgoing) -> None:
        """The request is over, or its client gone: a leg that still runs is cut off, which makes its engine stop."""
        beside = self._beside.pop(request.record.request_id, None)
        if beside is None:
            return
        if beside.cancel() and request.record.outcome == "ok" and request.decision.prefill is not None:
            # The answer shows that the prompt came over.
            self._report(request, request.decision.prefill, LegOutcome.ANSWERED, "")

    async def _begin(self, request: Outgoing, endpoint: ChosenEndpoint) -> tuple[BodyEdit, ...]:
        prefill, record = request.decision.prefill, request.record
        if prefill is None or prefill.worker == endpoint.worker:
            return ()
        shared = share(
            prefill.engine,
            record.api.name,
            _host(prefill.url),
            prefill.bootstrap_port,
            rank=prefill.rank,
            ranks=prefill.ranks,
        )
        if shared is None:
            self._report(request, prefill, LegOutcome.SKIPPED, f"no such leg for {record.api.name}")
            return ()
        why = self._why_not(prefill, endpoint) or shared.read(record.body)
        if why:
            self._report(request, prefill, LegOutcome.SKIPPED, why)
            if not shared.alone:
                raise EndpointFailed(UNSUPPORTED, f"it computes no prompts, and the engine that does: {why}", _BUSY)
            return ()
        if shared.together:
            task = asyncio.create_task(self._run_beside(request, prefill, endpoint, shared))
            self._beside[record.request_id] = task
            return shared.edit_decode()
        began = time.monotonic()
        try:
            carried = shared.edit_decode(await self._run(request, prefill, shared))
        except EndpointFailed as failure:
            self._failed(request, prefill, failure, began)
            return ()
        except NothingCarried as error:
            self._pause(prefill.worker, "", record.request_id, str(error))
            self._report(request, prefill, LegOutcome.USELESS, str(error), began, status=200)
            return ()
        self._report(request, prefill, LegOutcome.ANSWERED, "", began, status=200)
        request.drop_cache_source()
        return carried

    def _why_not(self, prefill: PrefillLeg, endpoint: ChosenEndpoint) -> str:
        """Why these two engines aren't asked for now; empty when they are."""
        if self._pauses.is_paused(prefill.worker, endpoint.worker, time.monotonic()):
            return "the engines couldn't hand a prompt over lately"
        return "it failed lately" if self._edge.is_avoided(prefill.worker) else ""

    async def _run(self, request: Outgoing, prefill: PrefillLeg, shared: SharedPrompt) -> bytes:
        """Send the leg and read its answer. Raises EndpointFailed; a client's error is one without judgement."""
        record, limits = request.record, request.record.policy.engine
        left_s = record.received_at + record.policy.limits.request_timeout - time.monotonic()
        within_s = max(0.0, left_s * PART_OF_TIME)
        load = self._edge.load
        call = engine_call(request, place_of(prefill), record.traceparent, shared.edit_prefill(), movable=True)
        load.begin_attempt(prefill.worker)
        self._under_way[record.request_id] = record.worker or "", prefill.worker
        try:
            shorter = replace(limits, first_byte_s=min(limits.first_byte_s, within_s))
            engine = await self._engines.send(call, shorter)
            try:
                body = await whole_answer(engine, within_s, MOST_BYTES)
                if engine.status >= _CLIENT_ERROR:
                    outcome = failure_of(engine.status) or LegOutcome.USELESS
                    raise EndpointFailed(outcome, f"answered {engine.status}", engine.status)
            finally:
                self._engines.release_connection(engine)
        finally:
            load.end_attempt(prefill.worker)
            del self._under_way[record.request_id]
        if body is None:
            raise EndpointFailed(FAILED, "its answer was too long, late, or broke off")
        return body

    async def _run_beside(
        self, request: Outgoing, prefill: PrefillLeg, endpoint: ChosenEndpoint, shared: SharedPrompt
    ) -> None:
        began = time.monotonic()
        try:
            await self._run(request, prefill, shared)
        except EndpointFailed as failure:
            self._failed(request, prefill, failure, began)
            if failure.outcome == LegOutcome.USELESS:
                # A request that is wrong is refused by both; the client gets the answer of the other one.
                await asyncio.sleep(GRACE_S)
            # It waits for a prompt that doesn't come.
            self._engines.leave(endpoint.worker, (request.record.request_id,), "the prefill leg failed")
        else:
            self._report(request, prefill, LegOutcome.ANSWERED, "", began, status=200)

    def _failed(self, request: Outgoing, prefill: PrefillLeg, failure: EndpointFailed, began: float) -> None:
        record = request.record
        report = self._report(request, prefill, failure.outcome, failure.detail, began, status=failure.status)
        if failure.outcome == LegOutcome.USELESS:
            return  # the request's own fault: the endpoint that answers says so
        self._edge.events.leg_failed(record, report, self._edge.boot_of(record.pool, prefill.worker))
        if self._edge.load.record_failure(prefill.worker, time.monotonic()):
            _log.warning(
                "prefill_failed",
                request_id=record.request_id,
                worker=prefill.worker,
                outcome=failure.outcome,
                reason=failure.detail,
            )

    def _pause(self, worker: str, endpoint: str, request_id: str, reason: str) -> None:
        if self._pauses.begin_pause(worker, endpoint, time.monotonic()):
            _log.warning(
                "prompt_not_handed_over", request_id=request_id, worker=worker, endpoint=endpoint, reason=reason
            )

    def _report_lost(self, request: Outgoing, prefill: PrefillLeg, endpoint: ChosenEndpoint, why: str) -> None:
        """The endpoint that answers couldn't use the prompt: the leg's report says so now."""
        record, reason = request.record, f"the endpoint that answers {why}"
        self._pause(prefill.worker, endpoint.worker, record.request_id, reason)
        self._counts[LegOutcome.LOST] += 1
        record.legs = tuple(
            [msgspec.structs.replace(each, outcome=LegOutcome.LOST, reason=reason) for each in record.legs]
        )
        record.level = "degraded"

    def _report(
        self,
        request: Outgoing,
        prefill: PrefillLeg,
        outcome: str,
        reason: str,
        began: float | None = None,
        *,
        status: int | None = None,
    ) -> LegReport:
        now, record = time.monotonic(), request.record
        began = now if began is None else began
        report = LegReport(
            leg=PREFILL,
            worker=prefill.worker,
            outcome=outcome,
            status=status,
            began_ms=round((began - record.received_at) * 1000.0, 3),
            took_ms=round((now - began) * 1000.0, 3),
            reason=reason,
        )
        self._counts[outcome] += 1
        record.legs = (*record.legs, report)
        if outcome not in LegOutcome.INTENDED:
            record.level = "degraded"
        return report


def _expired(request: Outgoing) -> bool:
    """Whether the first engine may have freed the prompt since."""
    record = request.record
    if not record.legs or record.legs[-1].outcome != LegOutcome.ANSWERED:
        return False
    ended = record.legs[-1]
    return time.monotonic() - record.received_at - (ended.began_ms + ended.took_ms) / 1000.0 > KEPT_S


def _host(url: str) -> str:
    return "127.0.0.1" if url.startswith(SCHEME) else urlsplit(url).hostname or ""
