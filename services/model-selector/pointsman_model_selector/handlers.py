"""Chooses the model of a request, and writes it into target and body."""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.journey import Journey, JourneyChanges, Stage, retold
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.reply import Rejection
from pointsman_contracts.response import ResponseCompleted
from pointsman_core.refusal import Refusal
from pointsman_core.settled_target import left_open, settled
from pointsman_hosting.configuration import Configuration
from pointsman_journey.hop import Hop
from pointsman_journey.routing_slip import SHADOW
from pointsman_model_selector.domain.selector import CompiledSelector, Selected, Selectors
from pointsman_model_selector.prompt_embedding import EmbeddedPrompt, PromptEmbedder
from pointsman_plugins.selecting import ModelQuestion, ModelStates
from pointsman_runtime.telling.counting import Count, Counter, Histogram

_PLUGIN_BUCKETS: Final = (1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 2e-3, 1e-2, 1e-1)


class Handlers:
    """Selects by the configuration revision that each request keeps to, and by the newest state of pools and models."""

    def __init__(
        self,
        configuration: Configuration[Selectors],
        registry: CollectorRegistry,
        *,
        time_every: int,
        embedder: PromptEmbedder,
    ) -> None:
        self._configuration: Final = configuration
        self._embedder: Final = embedder
        self._standing: Final = ModelStates()
        self._time_every: Final = time_every
        self._until_timed = 1
        self._selected: Final = Counter(
            "pointsman_model_selected", "Requests by selector and model.", ["selector", "model"], registry=registry
        )
        self._refused: Final = Counter(
            "pointsman_model_selection_refused", "Requests without a model.", ["selector", "code"], registry=registry
        )
        self._seconds: Final = Histogram(
            "pointsman_model_selector_plugin_seconds",
            "Time of one plugin for one request; a sample of requests.",
            ["kind", "plugin"],
            buckets=_PLUGIN_BUCKETS,
            registry=registry,
        )
        self._counts: dict[tuple[str, str], Count] = {}

    def snapshot(self, snapshot: PoolSnapshot) -> None:
        """A pool's newest state."""
        self._standing.pool_changed(snapshot, time.monotonic())

    def statistics(self, statistics: ModelStatistics) -> None:
        """Statistics of a model arrived. Their pause ends by the clock of the host that sent them, which may differ
        from this one's."""
        until_ms = statistics.limited_until_ms
        if until_ms is not None:
            now_ms = time.time_ns() // 1_000_000
            statistics = replace(statistics, limited_until_ms=now_ms + until_ms - statistics.at_ms)
        self._standing.model_changed(statistics)

    def completed(self, end: ResponseCompleted) -> None:
        """A request is over."""
        if self._standing.open:
            self._standing.open.end((end.source, end.request_id))

    def select(self, journey: Journey, hop: Hop[Journey]) -> Journey | Rejection | Awaitable[Journey | Rejection]:
        """Choose the model by the selector that the itinerary names; write it into target and body. An awaitable when
        the prompt has to be embedded."""
        name = journey.itinerary[0].policy or ""
        selector = self._configuration.revisions[journey.revision].compiled.get(name)
        if selector is None:
            return hop.reject(
                500,
                f"The profile names the model selector '{name}', which the configuration doesn't have.",
                code="no_selector",
            )
        if selector.embeddings is not None:
            return self._select_by_meaning(journey, hop, selector)
        return self._select(journey, hop, selector)

    async def _select_by_meaning(
        self, journey: Journey, hop: Hop[Journey], selector: CompiledSelector
    ) -> Journey | Rejection:
        assert selector.embeddings is not None  # noqa: S101 - `select` has looked
        embedded = await self._embedder.embed(journey, selector.embeddings)
        return self._select(journey, hop, selector, embedded)

    def _select(
        self,
        journey: Journey,
        hop: Hop[Journey],
        selector: CompiledSelector,
        embedded: EmbeddedPrompt | None = None,
    ) -> Journey | Rejection:
        name = selector.name
        self._until_timed -= 1
        timing = None
        if not self._until_timed:
            self._until_timed, timing = self._time_every, self._time
        question = ModelQuestion(
            journey,
            self._standing,
            time.monotonic(),
            time.time_ns() // 1_000_000,
            None if embedded is None else embedded.embedding,
        )
        try:
            selected = selector.select_model(question, timing)
        except Refusal as refusal:
            if not journey.request.dry_run:
                self._refused.labels(name, refusal.told_code).inc()
            return hop.refuse(refusal)
        if not journey.request.dry_run:
            self._count_selection(journey, selector, selected)
        changes = _settled(journey, selected)
        if embedded is not None:
            embedded.write(changes, journey)
        advanced = hop.advance_with(changes, f"{name}/{selected.note}"[:512])
        chain = self._configuration.revisions[journey.revision].compiled.after_model
        if chain is None or journey.itinerary[0].mode == SHADOW or any(map(_selects, advanced.itinerary)):
            return advanced
        process = hop.onward.process
        advanced, refusal = chain.process_request(advanced, process.service, process.instance)
        return advanced if refusal is None else hop.refuse_further(advanced, refusal)

    def _count_selection(self, journey: Journey, selector: CompiledSelector, selected: Selected) -> None:
        # The scheduler counts those that are left to it.
        key = selector.name, "" if selected.choice is not None else selected.model.name
        counter = self._counts.get(key)
        if counter is None:
            counter = self._counts[key] = self._selected.labels(*key)
        counter.total += 1
        if selector.counts_requests and selected.choice is None:
            self._standing.open.begin((journey.edge, journey.request_id), selected.model.name)

    def _time(self, kind: str, plugin: str) -> Callable[[], None]:
        started = time.perf_counter()
        seconds = self._seconds.labels(kind, plugin)
        return lambda: seconds.observe(time.perf_counter() - started)


def _selects(stage: Stage) -> bool:
    """Whether the stage chooses the model again."""
    return stage.service == "model-selector" and stage.mode != SHADOW


def _settled(journey: Journey, selected: Selected) -> JourneyChanges:
    target = selected.model.target
    if selected.choice is None:
        changes = settled(journey, target, selected.model.block_tokens)
        if selected.models:
            changes["models"] = selected.models
    else:
        changes = left_open(journey, selected.choice, target)
    changes["alternatives"] = tuple([candidate.target for candidate in selected.fallbacks])
    if journey.headers:
        # The headers that preprocessing wrote named the model that was asked for.
        changes["headers"] = retold(journey.headers, target)
    if selected.step is not None:
        changes["cascade"] = selected.step
    if selected.old_pools:
        changes["level"] = "degraded"
        changes["reasons"] = (*journey.reasons, f"old state of {', '.join(selected.old_pools)}")
    return changes
