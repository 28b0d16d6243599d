"""Looks answers up on a request's way in, and keeps them on its way back."""

import time
from collections.abc import Sequence
from typing import Final, Protocol

from pointsman_contracts.cache import CachePurge, CachePurged
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import AFTER, HeaderEdit, Journey, Stage
from pointsman_contracts.reply import Answer
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_core.config import DEFAULT_CACHE, Cache, Embeddings
from pointsman_runtime.configuration import Configuration
from pointsman_runtime.content_client import ContentGone, ContentUnusable
from pointsman_runtime.errors import BusError
from pointsman_runtime.logs import Log
from pointsman_runtime.stage import Hop
from pointsman_semantic_cache.domain import memo as memos
from pointsman_semantic_cache.domain.asked import Asked, asked
from pointsman_semantic_cache.domain.embedding import Embedder, EmbedderUnavailable
from pointsman_semantic_cache.domain.entry import Entry, Meaning, Partition
from pointsman_semantic_cache.domain.finding import Found, find_meant
from pointsman_semantic_cache.domain.gate.reading import read
from pointsman_semantic_cache.domain.keeping import refusal
from pointsman_semantic_cache.domain.policy import GUARD, Policy
from pointsman_semantic_cache.domain.store import Store, StoreUnavailable
from pointsman_semantic_cache.domain.wishes import Wishes, wishes
from pointsman_semantic_cache.metrics import CacheMetrics

SERVICE: Final = "semantic-cache"
TOLD: Final = "x-pointsman-cache"
"""Header of every answer that passed by here: `hit`, `semantic`, `miss`, `bypass`."""

_log = Log("cache")


class Content(Protocol):
    """Where a request's text is."""

    async def body(self, edge: str, request_id: str) -> bytes:
        """As `ContentClient.body`."""
        ...


class StoreOf(Protocol):
    """Finds stores."""

    def of(self, cache: Cache) -> Store:
        """Where a cache's answers are kept. Raises StoreUnavailable."""
        ...

    def all(self) -> list[Store]:
        """Every store that was in use."""
        ...


class EmbedderOf(Protocol):
    """Finds embedders."""

    async def get(self, settings: Embeddings) -> Embedder:
        """Raises EmbedderUnavailable."""
        ...


class Handlers:
    """Whatever isn't there, a request goes on without it: degraded, counted, and told once until it is back."""

    def __init__(
        self,
        instance: str,
        configuration: Configuration[Policy],
        content: Content,
        stores: StoreOf,
        embedders: EmbedderOf,
        metrics: CacheMetrics,
    ) -> None:
        self._instance: Final = instance
        self._configuration: Final = configuration
        self._content: Final = content
        self._stores: Final = stores
        self._embedders: Final = embedders
        self._metrics: Final = metrics
        self._missing: dict[str, str] = {}

    async def look_up(self, journey: Journey, hop: Hop[Journey]) -> Journey | Answer:
        """The answer to a request that was answered before; otherwise the journey, with a memo for whoever keeps the
        answer to this one."""
        policy = self._configuration.at(journey.revision).compiled
        name = journey.itinerary[0].policy or DEFAULT_CACHE
        cache = policy.caches.get(name)
        wished = wishes(journey.request.headers)
        why_not = _passed_by(journey, cache, wished)
        if cache is None or why_not is not None:
            return self._go_on(journey, hop, name, "bypass", why_not or "no such cache")
        partition = _partition(journey, name, cache, policy)
        now_ms = time.time_ns() // 1_000_000
        try:
            body = await self._content.body(journey.edge, journey.request_id)
            question = asked(journey.request.api, body, journey.body)
            if question is None:
                return self._go_on(journey, hop, name, "bypass", "not a JSON object")
            store = self._stores.of(cache)
            entry = await store.exact(partition, question.exact, now_ms) if wished.look else None
        except ContentGone:
            # Its client has left; whoever is next finds that too.
            return self._go_on(journey, hop, name, "bypass", "no longer held by its edge")
        except (BusError, ContentUnusable) as problem:
            return self._go_on(journey, hop, name, "miss", "unavailable", missing=self._told("content", problem))
        except StoreUnavailable as problem:
            return self._go_on(journey, hop, name, "miss", "unavailable", missing=self._told("store", problem))
        self._back("content")
        self._back("store")
        if entry is not None and _young_enough(entry, wished, now_ms):
            return self._answered(journey, hop, name, cache, entry, "hit", now_ms)
        return await self._by_meaning(journey, hop, name, cache, partition, question, wished, store, now_ms)

    async def review(self, review: ResponseReview) -> Verdict:
        """Keep an answer that the client has, if it may be given again. What is said of it is always that it passes."""
        policy = self._configuration.at(review.revision).compiled
        name = review.policy or DEFAULT_CACHE
        cache = policy.caches.get(name)
        if cache is None or review.mode != AFTER or review.memo is None:
            return self._verdict(review, None)
        profile = policy.profiles.get(review.profile or "")
        guarded = profile is not None and profile.guarded
        why_not = refusal(review, cache, guarded=guarded)
        if why_not is None:
            why_not = await self._keep(review, cache, guarded=guarded)
        self._metrics.kept(name, why_not)
        return self._verdict(review, why_not or "kept")

    async def purge(self, query: CachePurge) -> CachePurged:
        """Forget answers."""
        count = 0
        problem: str | None = None
        for store in self._stores.all():
            try:
                count += await store.purge(query.cache, query.tenant)
            except StoreUnavailable as error:
                problem = self._told("store", error)
        _log.info("purged", entries=count, cache=query.cache or "every", whole=query.tenant is None)
        return CachePurged(instance=self._instance, entries=count, problem=problem)

    async def _by_meaning(
        self,
        journey: Journey,
        hop: Hop[Journey],
        name: str,
        cache: Cache,
        partition: Partition,
        question: Asked,
        wished: Wishes,
        store: Store,
        now_ms: int,
    ) -> Journey | Answer:
        memo = memos.Memo(partition, question.exact)
        if cache.embeddings is None or not question.turn:
            return self._go_on(journey, hop, name, "miss", "nothing alike", memo=memo)
        try:
            embedder = await self._embedders.get(cache.embeddings)
            with self._metrics.embedding():
                vector = await embedder.embed(question.turn)
        except EmbedderUnavailable as problem:
            missing = self._told("embeddings", problem)
            return self._go_on(journey, hop, name, "miss", "unavailable", memo=memo, missing=missing)
        self._back("embeddings")
        if vector is None:
            return self._go_on(journey, hop, name, "miss", "too long, or without words", memo=memo)
        meaning = Meaning(question.context, embedder.name, vector, read(question.turn))
        memo = memo._replace(meaning=meaning)
        if not wished.look:
            return self._go_on(journey, hop, name, "miss", "a new one was asked for", memo=memo)
        threshold = cache.embeddings.threshold or embedder.threshold
        try:
            near = await store.near(partition, meaning, threshold, now_ms)
        except StoreUnavailable as problem:
            missing = self._told("store", problem)
            return self._go_on(journey, hop, name, "miss", "unavailable", memo=memo, missing=missing)
        found = find_meant(meaning, [each for each in near if _young_enough(each.entry, wished, now_ms)])
        for reason in found.refused:
            self._metrics.refused(name, reason)
        if found.entry is None:
            note = f"{embedder.name}: {_refused(found)}"
            return self._go_on(journey, hop, name, "miss", note, memo=memo)
        note = f"{embedder.name} {found.similarity:.3f}"
        return self._answered(journey, hop, name, cache, found.entry, "semantic", now_ms, note)

    def _answered(
        self,
        journey: Journey,
        hop: Hop[Journey],
        name: str,
        cache: Cache,
        entry: Entry,
        result: str,
        now_ms: int,
        note: str = "the same request",
    ) -> Answer:
        self._metrics.looked_up(name, result)
        age_s = max(0, now_ms - entry.kept_ms) // 1000
        # What the guard let pass under this very policy passes again; whoever else looks at answers looks at this one.
        checked = {SERVICE, GUARD} if entry.verdict == _PASSED else {SERVICE}
        return hop.answer(
            entry.body,
            content_type=entry.content_type,
            status=entry.status,
            named=entry.named,
            usage=entry.usage if cache.count_tokens else None,
            saved=None if cache.count_tokens else entry.usage,
            response=tuple(stage for stage in journey.response if stage.service not in checked),
            answer_headers=(HeaderEdit(name=TOLD, value=result), HeaderEdit(name="age", value=str(age_s))),
            note=f"{result}, {age_s} s old: {note}",
        )

    def _go_on(
        self,
        journey: Journey,
        hop: Hop[Journey],
        name: str,
        result: str,
        note: str,
        *,
        memo: memos.Memo | None = None,
        missing: str | None = None,
    ) -> Journey:
        self._metrics.looked_up(name, "failed" if missing is not None else result)
        changes: dict[str, object] = {
            "answer_headers": (*journey.answer_headers, HeaderEdit(name=TOLD, value=result)),
        }
        if memo is not None:
            changes["response"] = _with_memo(journey.response, name, memos.encode(memo))
        if missing is not None:
            changes |= {"level": "degraded", "reasons": (*journey.reasons, f"{SERVICE}: {missing}")}
        return hop.advance(note=f"{result}: {note}", **changes)

    async def _keep(self, review: ResponseReview, cache: Cache, *, guarded: bool) -> str | None:
        try:
            memo = memos.decode(review.memo or "")
        except memos.MemoUnreadable:
            return "memo unreadable"
        if review.target is None or memo.partition.model != _model_of(review.target.provider, review):
            # A fallback answered: it isn't the model that the next one asks.
            return "another model"
        now_ms = time.time_ns() // 1_000_000
        entry = Entry(
            memo.key,
            review.body or b"",
            review.headers.get("content-type", "application/json"),
            review.status,
            review.model,
            _PASSED if guarded else "none",
            review.usage,
            now_ms,
            now_ms + round(cache.ttl * 1000),
            memo.meaning,
        )
        try:
            gone = await self._stores.of(cache).put(memo.partition, entry, cache.max_bytes)
        except StoreUnavailable as problem:
            return self._told("store", problem)
        self._metrics.evicted(memo.partition.cache, gone)
        return None

    def _verdict(self, review: ResponseReview, note: str | None) -> Verdict:
        return Verdict(request_id=review.request_id, instance=self._instance, note=note)

    def _told(self, what: str, problem: Exception) -> str:
        """Say it once; returns a word for the trail."""
        text = str(problem) or type(problem).__name__
        if self._missing.get(what) != text:
            self._missing[what] = text
            _log.warning("degraded", missing=what, problem=text, hint="told again when it has worked in between")
        return f"{what} unavailable"

    def _back(self, what: str) -> None:
        if self._missing and self._missing.pop(what, None) is not None:
            _log.info("available_again", what=what)


_PASSED: Final = "passed"


def _passed_by(journey: Journey, cache: Cache | None, wished: Wishes) -> str | None:
    """Why a request isn't looked up at all."""
    if cache is None:
        return "no such cache"
    if not wished.keep:
        return "no-store"
    if journey.target is None:
        return "no model yet"
    if cache.max_temperature is not None and journey.request.api != "embeddings":
        temperature = journey.request.fields.get("temperature")
        if not isinstance(temperature, int | float) or temperature > cache.max_temperature:
            return "temperature"
    return None


def _partition(journey: Journey, name: str, cache: Cache, policy: Policy) -> Partition:
    identity = Identity.of(journey.request.attributes) or Identity()
    profile = policy.profiles.get(journey.profile or "")
    target = journey.target
    model = "" if target is None else f"{target.provider or ''}/{target.pool or ''}/{target.model}"
    subject = identity.subject if "subject" in cache.per else ""
    return Partition(name, identity.tenant, subject, model, profile.epoch if profile else "")


def _model_of(provider: str | None, review: ResponseReview) -> str:
    target = review.target
    return "" if target is None else f"{provider or ''}/{target.pool or ''}/{target.model}"


def _young_enough(entry: Entry, wished: Wishes, now_ms: int) -> bool:
    return wished.max_age_s is None or now_ms - entry.kept_ms <= wished.max_age_s * 1000


def _refused(found: Found) -> str:
    return f"close, but for {', '.join(dict.fromkeys(found.refused))}" if found.refused else "nothing close"


def _with_memo(stages: Sequence[Stage], name: str, memo: str) -> tuple[Stage, ...]:
    return tuple(
        stage.model_copy(update={"memo": memo})
        if stage.service == SERVICE and (stage.policy or DEFAULT_CACHE) == name
        else stage
        for stage in stages
    )
