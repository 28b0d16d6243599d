"""From the edge's message to the journey that the profile-picker gets."""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from pointsman_contracts.journey import Journey, PreprocessRequest, StageReport
from pointsman_contracts.reply import Rejection
from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.parse import parse
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, describe
from pointsman_preprocessor.domain.processing import Incoming
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_runtime.configuration import Configuration
from pointsman_runtime.stage import Hop


class Handlers:
    """Preprocesses requests by the configuration revision that each one keeps to."""

    def __init__(
        self,
        configuration: Configuration[Pipeline],
        registry: CollectorRegistry,
        *,
        thread_above: int,
        max_values: int,
        threads: Executor,
    ) -> None:
        """Bodies over `thread_above` bytes are parsed by `threads`; `max_values` as `parse`."""
        self._configuration: Final = configuration
        self._thread_above: Final = thread_above
        self._max_values: Final = max_values
        self._threads: Final = threads
        self._decodes: Final = Counter(
            "pointsman_json_decodes", "Request bodies decoded; one for each request.", registry=registry
        )
        self._refused: Final = Counter(
            "pointsman_preprocess_refused", "Requests refused here, by error code.", ["code"], registry=registry
        )
        self._dropped_headers: Final = Counter(
            "pointsman_preprocess_dropped_headers",
            "Request headers that rules can't read because they are too long.",
            registry=registry,
        )
        self._rewritten: Final = Counter(
            "pointsman_model_rewrites",
            "Requests by rewrite and the model that it gave.",
            ["rule", "model"],
            registry=registry,
        )

    def preprocess(
        self, request: PreprocessRequest, hop: Hop[PreprocessRequest]
    ) -> Journey | Rejection | Awaitable[Journey | Rejection]:
        """Parse, run the processors, reduce to facts. Work that waits or takes long is returned as a coroutine."""
        pipeline = self._configuration.at(request.revision).compiled
        if len(hop.body) > self._thread_above:
            return self._preprocess_large(request, hop, pipeline)
        try:
            incoming = self._open(request, hop.body)
            waiting = pipeline.run(incoming)
            if waiting is None:
                return self._depart(incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop)
        return self._preprocess_waiting(waiting, incoming, hop, pipeline)

    async def _preprocess_waiting(
        self, waiting: Awaitable[None], incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Journey | Rejection:
        try:
            await waiting
            return self._depart(incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop)

    async def _preprocess_large(
        self, request: PreprocessRequest, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Journey | Rejection:
        in_thread = asyncio.get_running_loop().run_in_executor
        try:
            incoming = await in_thread(self._threads, self._open, request, hop.body)
            waiting = pipeline.run(incoming)
            if waiting is not None:
                await waiting
            return await in_thread(self._threads, self._depart, incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop)

    def _open(self, request: PreprocessRequest, raw: memoryview) -> Incoming:
        self._decodes.inc()
        headers = read_headers(request.headers)
        if headers.dropped:
            self._dropped_headers.inc(headers.dropped)
        return Incoming(request, parse(request.path, raw, self._max_values), headers)

    def _depart(self, incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline) -> Journey:
        facts = describe(incoming, pipeline.block_tokens(incoming.model))
        return depart(incoming, facts, self._report(incoming, hop))

    def _report(self, incoming: Incoming, hop: Hop[PreprocessRequest], note: str | None = None) -> StageReport:
        if incoming.rule is None:
            return hop.report(note=note)
        self._rewritten.labels(incoming.rule, incoming.model).inc()
        rewritten = f"rewrite {incoming.rule}: {incoming.model}"
        return hop.report(note=rewritten if note is None else f"{rewritten}; {note}")

    def _refuse(self, refusal: Refusal, hop: Hop[PreprocessRequest]) -> Rejection:
        self._refused.labels(refusal.code or refusal.type).inc()
        return hop.reject(
            refusal.status,
            refusal.message,
            type=refusal.type,
            code=refusal.code,
            param=refusal.param,
            retry_after_s=refusal.retry_after_s,
            dropped_reason=refusal.dropped_reason,
        )
