"""Turns the edge's message into the journey for the profile-picker."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, ParamSpec, TypeVar

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_apis.grown_bodies import GrownBodies
from pointsman_apis.requests import model_of, parse
from pointsman_contracts.content import PromptEnd, PromptTokens
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Journey, PreprocessRequest, StageReport
from pointsman_contracts.reply import Answer, Rejection
from pointsman_core.refusal import Refusal
from pointsman_hosting.configuration import Configuration
from pointsman_journey.content_client import ContentGone, ContentUnusable
from pointsman_journey.hop import Hop
from pointsman_limits.domain.limits.limiter import Limiter, OwnBook
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import prompt_of
from pointsman_preprocessor.domain.asker import ASKS_WHO, allowed_models_answer, asker
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, processor_reports
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.verdict_metrics import VerdictMetrics
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.counting import Counter
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

STAGE: Final = "preprocessor"
TOO_MANY: Final = 429

P = ParamSpec("P")
T = TypeVar("T")

_log = Log("preprocessor")


class Handlers:
    """Preprocesses requests by the configuration revision that each one started with."""

    def __init__(
        self,
        configuration: Configuration[Pipeline],
        registry: CollectorRegistry,
        *,
        thread_above: int,
        tokenize_in_thread_above: int = 4096,
        max_values: int,
        threads: Executor,
        bodies: GrownBodies | None = None,
        limiter: Limiter | None = None,
        tell: Callable[[PromptTokens | PromptEnd, str], None] | None = None,
        fetch: Callable[[str, str], Awaitable[bytes]] | None = None,
        dry_runs: "Handlers | None" = None,
    ) -> None:
        """Bodies over `thread_above` bytes are parsed by `threads`, those over `tokenize_in_thread_above` tokenized by
        them; `max_values` and `bodies` as `parse`; `tell` sends an edge (its instance) the tokens of a prompt that it
        holds; `fetch` asks an edge for the body of a request, and raises as `ContentClient.fetch_body` does;
        `dry_runs` take the requests that ask for the decision alone; None: these do."""
        self._dry_runs: Final = dry_runs or self
        self._configuration: Final = configuration
        self._fetch: Final = fetch or _cannot_fetch
        self._missing: Final = Missing(_log)
        self._thread_above: Final = thread_above
        self._tokenize_in_thread_above: Final = tokenize_in_thread_above
        self._max_values: Final = max_values
        self._threads: Final = threads
        self._bodies: Final = bodies
        self._limiter: Final = limiter or OwnBook()
        self._tell: Final = tell
        self._decodes: Final = Counter(
            "pointsman_json_decodes", "Request bodies decoded; one for each request.", registry=registry
        ).labels()
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
        self._tokenized: Final = Counter(
            "pointsman_preprocess_prompts",
            "Prompts of models with a tokenizer: tokenized, or why they weren't.",
            ["outcome"],
            registry=registry,
        )
        self._rendered: Final = Counter(
            "pointsman_preprocess_renders",
            "Tokenized prompts: rendered whole, or only what they add to the conversation's last one.",
            ["part"],
            registry=registry,
        )
        self._verdicts: Final = VerdictMetrics(registry)
        self._told: Final[set[tuple[str, str]]] = set()

    def preprocess(
        self, request: PreprocessRequest, hop: Hop[PreprocessRequest]
    ) -> Journey | Rejection | Answer | Awaitable[Journey | Rejection | Answer]:
        """Parse, run the processors, reduce to facts. Work that waits or takes long is returned as a coroutine."""
        pipeline = self._configuration.revisions[request.revision].compiled
        if request.path == ASKS_WHO:
            return self._identify(request, hop, pipeline)
        if request.dry_run and self._dry_runs is not self:
            return self._dry_runs.preprocess(request, hop)
        if request.body_bytes is not None:
            return self._preprocess_apart(request, hop, pipeline)
        if len(hop.body) > self._thread_above:
            return self._preprocess_large(request, hop.body, hop, pipeline)
        incoming: Incoming | None = None
        try:
            incoming = self._open(request, hop.body, pipeline)
            waiting = pipeline.run(incoming)
            if waiting is None:
                if pipeline.reads_prompts and self._takes_long(incoming, pipeline):
                    return self._depart_in_thread(incoming, hop, pipeline)
                return self._depart(incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop, incoming)
        return self._preprocess_waiting(waiting, incoming, hop, pipeline)

    def _identify(
        self, request: PreprocessRequest, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Answer | Rejection | Awaitable[Answer | Rejection]:
        incoming: Incoming | None = None
        try:
            incoming = asker(request)
            waiting = pipeline.identify_sender(incoming)
        except Refusal as refusal:
            return self._refuse(refusal, hop, incoming)
        return (
            allowed_models_answer(incoming, STAGE)
            if waiting is None
            else self._identify_waiting(waiting, incoming, hop)
        )

    async def _identify_waiting(
        self, waiting: Awaitable[None], incoming: Incoming, hop: Hop[PreprocessRequest]
    ) -> Answer | Rejection:
        try:
            await waiting
        except Refusal as refusal:
            return self._refuse(refusal, hop, incoming)
        return allowed_models_answer(incoming, STAGE)

    async def _preprocess_waiting(
        self, waiting: Awaitable[None], incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Journey | Rejection:
        try:
            await waiting
            if pipeline.reads_prompts and self._takes_long(incoming, pipeline):
                return await self._depart_in_thread(incoming, hop, pipeline)
            return self._depart(incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop, incoming)

    async def _preprocess_apart(
        self, request: PreprocessRequest, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Journey | Rejection:
        """Preprocess a request whose body is too large for a message of the bus."""
        try:
            body = await self._fetch(request.edge, request.request_id)
        except ContentGone:
            return hop.reject(503, "The request ended before its body was read.", code="content_gone")
        except (BusError, ContentUnusable) as error:
            self._missing.note_missing("a large body", error)
            return hop.reject(503, "The request's body could not be read; try again.", code="content_unavailable")
        self._missing.note_recovery("a large body")
        return await self._preprocess_large(request, body, hop, pipeline)

    async def _preprocess_large(
        self, request: PreprocessRequest, body: bytes | memoryview, hop: Hop[PreprocessRequest], pipeline: Pipeline
    ) -> Journey | Rejection:
        incoming: Incoming | None = None
        try:
            incoming = await self._in_thread(self._open, request, body, pipeline)
            waiting = pipeline.run(incoming)
            if waiting is not None:
                await waiting
            return await self._depart_in_thread(incoming, hop, pipeline)
        except Refusal as refusal:
            return self._refuse(refusal, hop, incoming)

    def _open(self, request: PreprocessRequest, raw: bytes | memoryview, pipeline: Pipeline) -> Incoming:
        self._decodes.total += 1
        headers = read_headers(request.headers)
        if headers.dropped:
            self._dropped_headers.inc(headers.dropped)
        content_type = request.headers.get("content-type", "")
        body = parse(request.path, raw, self._max_values, content_type=content_type, bodies=self._bodies)
        if body.api.passed:
            body.model = request.model or model_of(pipeline.config, body)
        # The prompt now, because this rejects bodies that nest too deeply for later stages.
        return Incoming(request, body, headers, measured=prompt_of(body))

    async def _depart_in_thread(self, incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline) -> Journey:
        journey = await self._in_thread(self._reduce, incoming, hop, pipeline)
        self._tell_tokens(incoming)
        return journey

    def _depart(self, incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline) -> Journey:
        if not pipeline.reads_prompts:
            if incoming.verdicts:
                self._verdicts.count_verdicts(incoming)
            report = hop.report() if incoming.rule is None else self._report(incoming, hop)
            return depart(incoming, pipeline.build_facts(incoming), report)
        journey = self._reduce(incoming, hop, pipeline)
        self._tell_tokens(incoming)
        return journey

    def _tell_tokens(self, incoming: Incoming) -> None:
        """Before the journey continues: the edge has the tokens when its decision comes."""
        told = [each for each in (incoming.tokens, incoming.end) if each is not None]
        if not told or self._tell is None:
            return
        try:
            for each in told:
                self._tell(each, incoming.envelope.edge)
        except BusError as error:
            self._tokenized.labels("untold").inc()
            if ("tokens", type(error).__name__) not in self._told:
                self._told.add(("tokens", type(error).__name__))
                _log.warning("tokens_untold", request_id=incoming.envelope.request_id, problem=type(error).__name__)

    def _reduce(self, incoming: Incoming, hop: Hop[PreprocessRequest], pipeline: Pipeline) -> Journey:
        self._verdicts.count_verdicts(incoming)
        model = incoming.model
        tokenizer = pipeline.tokenizers.find_tokenizer(model)
        # A prompt of token ids needs none.
        if tokenizer is None or _is_token_ids(incoming):
            facts = pipeline.build_facts(incoming)
            incoming.end = pipeline.end_for_edge(incoming, facts)
            return depart(incoming, facts, self._report(incoming, hop))
        try:
            prompt = tokenizer.build_prompt(incoming)
        except NotTokenized as error:
            self._tokenized.labels(error.reason).inc()
            note = f"not tokenized: {error.detail}"
            if error.failed and (tokenizer.name, error.detail) not in self._told:
                self._told.add((tokenizer.name, error.detail))
                _log.warning(
                    "prompt_not_tokenized",
                    request_id=incoming.envelope.request_id,
                    tokenizer=tokenizer.name,
                    model=model,
                    problem=error.detail,
                )
            facts = pipeline.build_facts(incoming)
            return depart(incoming, facts, self._report(incoming, hop, note), note if error.failed else "")
        self._tokenized.labels("tokenized").inc()
        self._rendered.labels("added" if prompt.added else "whole").inc()
        incoming.tokens = pipeline.token_readers.tokens_for_edge(incoming, prompt)
        facts = pipeline.build_facts(incoming, prompt)
        incoming.end = pipeline.end_for_edge(incoming, facts, prompt)
        return depart(incoming, facts, self._report(incoming, hop, "tokenized"))

    def _report(self, incoming: Incoming, hop: Hop[PreprocessRequest], note: str | None = None) -> StageReport:
        if incoming.rule is None:
            return hop.report(note=note)
        self._rewritten.labels(incoming.rule, incoming.model).inc()
        rewritten = f"rewrite {incoming.rule}: {incoming.model}"
        return hop.report(note=rewritten if note is None else f"{rewritten}; {note}")

    def _takes_long(self, incoming: Incoming, pipeline: Pipeline) -> bool:
        size = len(incoming.body.raw)
        return size > self._tokenize_in_thread_above and pipeline.tokenizers.find_tokenizer(incoming.model) is not None

    def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    def _refuse(self, refusal: Refusal, hop: Hop[PreprocessRequest], incoming: Incoming | None) -> Rejection:
        self._refused.labels(refusal.told_code).inc()
        if incoming is None:
            return hop.refuse(refusal)
        self._verdicts.count_verdicts(incoming)
        if incoming.charges:
            self._take_back(incoming, refusal)
        rejection = hop.refuse(
            refusal,
            tuple(incoming.answer_headers.values()),
            Identity.from_attributes(incoming.attributes),
            incoming.body.model or None,
        )
        own = rejection.trail[-1]
        trail = (*rejection.trail[:-1], *processor_reports(incoming, own.instance), own)
        return replace(rejection, trail=trail)

    def _take_back(self, incoming: Incoming, refusal: Refusal) -> None:
        """Release the charges of a request that was rejected. The limit that rejected it decides whether it counts as a
        request."""
        charges = incoming.charges
        if refusal.status != TOO_MANY:
            charges = [
                charge for charge in charges if charge.budget is not None or charge.windows[0].unit != "requests"
            ]
        self._limiter.release_charges(charges, incoming.envelope.received_ms / 1000)


async def bounded(waiting: Awaitable[None], seconds: float) -> None:
    """Wait with a timeout. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        await waiting


def _is_token_ids(incoming: Incoming) -> bool:
    body = incoming.body
    return body.api.template == "text" and not any(isinstance(prompt, str) for prompt in body.view.prompts or ())


async def _cannot_fetch(edge: str, request_id: str) -> bytes:
    del request_id
    raise ContentUnusable(edge)
