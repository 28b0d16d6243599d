"""The vectors of prompts, and of the examples that scorers compare them with."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, cast

import orjson
from prometheus_client import CollectorRegistry

from pointsman_apis import named
from pointsman_apis.last_turn import last_user_text
from pointsman_contracts.journey import Journey, JourneyChanges, edited
from pointsman_contracts.message import JsonValue
from pointsman_core.config import Embeddings
from pointsman_embedding.carried_vector import CARRIED, carried, carry
from pointsman_embedding.embedder import LONGEST, Embedder, EmbedderUnavailable, Vector
from pointsman_journey.content_client import ContentGone, ContentSource, ContentUnusable
from pointsman_model_selector.domain.selector import CompiledSelector
from pointsman_plugins.selecting import ModelScorer, PromptEmbedding
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.counting import Counter, Histogram
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

PAUSE_S: Final = 1.0
"""How long an embedder that failed isn't asked: otherwise each request would wait for its timeout."""
_TOO_SLOW: Final = "embedding takes longer than `timeout`"
_USED_AGAIN_BY: Final = "semantic-cache"


class PreparedEmbedders(Protocol):
    """Finds embedders."""

    def prepare(self, wanted: Iterable[Embeddings]) -> None:
        """Begin to load these."""
        ...

    async def get(self, settings: Embeddings) -> Embedder:
        """Raises EmbedderUnavailable."""
        ...

    async def close(self) -> None: ...


class EmbeddedPrompt(NamedTuple):
    """A prompt's embedding, and the attribute that carries it to later stages."""

    embedding: PromptEmbedding
    carried: dict[str, JsonValue] | None = None

    def write(self, changes: JourneyChanges, journey: Journey) -> None:
        """Into the journey: the vector for a cache that comes later, or the reason why the choice was made by words."""
        if self.embedding.missing:
            changes["level"] = "degraded"
            reasons = changes.get("reasons", journey.reasons)
            changes["reasons"] = (*reasons, f"model-selector: {self.embedding.missing}")
        if self.carried is not None and any(stage.service == _USED_AGAIN_BY for stage in journey.itinerary):
            facts = changes.get("request", journey.request)
            changes["request"] = facts.changed(attributes={**facts.attributes, CARRIED.name: self.carried})


class PromptEmbedder:
    """Embeds the last words of users. A prompt is embedded once: its vector travels on to the cache."""

    def __init__(self, embedders: PreparedEmbedders, content: ContentSource, registry: CollectorRegistry) -> None:
        self._embedders: Final = embedders
        self._content: Final = content
        self._missing: Final = Missing(Log("model_selector"))
        self._waiting: list[ModelScorer] = []
        """Scorers whose examples aren't embedded yet."""
        self._known: dict[Embeddings, dict[str, Vector]] = {}
        """The vectors of the newest configuration's examples."""
        self._learning: asyncio.Task[None] | None = None
        self._paused_until_s: Final[dict[Embeddings, float]] = {}
        self._outcomes: Final = Counter(
            "pointsman_model_selector_embeddings",
            "Prompts to compare by meaning: embedded, carried (an earlier stage embedded it), empty, failed, or paused "
            "(the embedder failed less than a second before).",
            ["outcome"],
            registry=registry,
        )
        self._seconds: Final = Histogram(
            "pointsman_model_selector_embedding_seconds",
            "Time to embed a prompt.",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
            registry=registry,
        ).labels()

    def prepare(self, selectors: Iterable[CompiledSelector]) -> None:
        """Load the models of these selectors, and embed their examples."""
        self._waiting = [each for selector in selectors for each in selector.comparing]
        used = dict.fromkeys(each.embeddings for each in self._waiting if each.embeddings is not None)
        self._known = {settings: vectors for settings, vectors in self._known.items() if settings in used}
        self._embedders.prepare(used)
        self.embed_examples()

    def embed_examples(self) -> None:
        """Embed the examples that aren't embedded yet, unless that is under way."""
        if self._waiting and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self._embed_examples())

    async def close(self) -> None:
        """Stop learning, close the embedders."""
        if self._learning is not None:
            self._learning.cancel()
        await self._embedders.close()

    async def _embed_examples(self) -> None:
        for scorer in tuple(self._waiting):
            settings = scorer.embeddings
            if settings is None:
                continue
            try:
                embedder = await self._embedders.get(settings)
                rows = await self._rows(embedder, settings, scorer.texts_to_embed())
            except TimeoutError:
                self._missing.note_missing("embeddings of examples", _TOO_SLOW)
                return
            except EmbedderUnavailable as problem:
                self._missing.note_missing("embeddings of examples", problem)
                return
            self._missing.note_recovery("embeddings of examples")
            scorer.take_vectors(embedder.name, rows)
            self._waiting = [each for each in self._waiting if each is not scorer]

    async def _rows(self, embedder: Embedder, settings: Embeddings, texts: Sequence[str]) -> Vector:
        import numpy as np

        known = self._known.setdefault(settings, {})
        for text in dict.fromkeys(texts):
            if text not in known:
                async with asyncio.timeout(settings.timeout):
                    vector = await embedder.embed_start(text)
                if vector is None:
                    raise EmbedderUnavailable("an example has no vector: it has no word that the model knows")
                known[text] = vector
        if len({len(known[text]) for text in texts}) > 1:
            known.clear()
            raise EmbedderUnavailable("vectors of examples differ in length")
        return np.stack([known[text] for text in texts])

    async def embed(self, journey: Journey, settings: Embeddings) -> EmbeddedPrompt:
        """The vector of the user's last words, or the reason why there is none."""
        now_s = time.monotonic()
        if now_s < self._paused_until_s.get(settings, 0.0):
            return self._without("paused", "embeddings unavailable")
        try:
            async with asyncio.timeout(settings.timeout):
                embedded = await self._embed(journey, settings)
        except (BusError, ContentUnusable) as problem:
            return self._without("failed", self._missing.note_missing("content", problem))
        except (EmbedderUnavailable, TimeoutError) as problem:
            self._paused_until_s[settings] = time.monotonic() + PAUSE_S
            why = _TOO_SLOW if isinstance(problem, TimeoutError) else problem
            return self._without("failed", self._missing.note_missing("embeddings", why))
        except ContentGone:
            # Its client has left; the next stage finds that too.
            return self._counted("empty", EmbeddedPrompt(PromptEmbedding("", None)))
        self._missing.note_recovery("embeddings", "content")
        return embedded

    async def _embed(self, journey: Journey, settings: Embeddings) -> EmbeddedPrompt:
        embedder = await self._embedders.get(settings)
        text = _last_words(journey, await self._content.fetch_body(journey.edge, journey.request_id))
        if not text:
            return self._counted("empty", EmbeddedPrompt(PromptEmbedding(embedder.name, None)))
        vector = carried(journey.request.attributes, embedder.name, text)
        if vector is not None:
            return self._counted("carried", EmbeddedPrompt(PromptEmbedding(embedder.name, vector)))
        whole = len(text) <= LONGEST
        began = time.perf_counter()
        vector = await embedder.embed(text) if whole else None
        if vector is None:
            whole = False
            vector = await embedder.embed_start(text[:LONGEST])
        self._seconds.observe(time.perf_counter() - began)
        if vector is None:
            return self._counted("empty", EmbeddedPrompt(PromptEmbedding(embedder.name, None)))
        # A cache compares whole questions alone.
        kept = carry(embedder.name, text, vector) if whole else None
        return self._counted("embedded", EmbeddedPrompt(PromptEmbedding(embedder.name, vector), kept))

    def _without(self, outcome: str, why: str) -> EmbeddedPrompt:
        return self._counted(outcome, EmbeddedPrompt(PromptEmbedding("", None, why)))

    def _counted(self, outcome: str, embedded: EmbeddedPrompt) -> EmbeddedPrompt:
        self._outcomes.labels(outcome).inc()
        return embedded


def _last_words(journey: Journey, body: bytes) -> str:
    try:
        parsed = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(parsed, dict):
        return ""
    document = edited(cast("dict[str, object]", parsed), journey.body)
    return last_user_text(document.get(named(journey.request.api).conversation))
