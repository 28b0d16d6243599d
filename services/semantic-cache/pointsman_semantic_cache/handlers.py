"""The semantic-cache's messages: lookups, and answers to store."""

import time
from collections.abc import Awaitable

from pointsman_contracts.cache import CachePurge, CachePurged
from pointsman_contracts.journey import AFTER, Journey
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_core.config import DEFAULT_CACHE, WORDS, Cache
from pointsman_journey.hop import Hop
from pointsman_runtime.telling.logs import Log
from pointsman_semantic_cache.domain import memo as memos
from pointsman_semantic_cache.domain.entry import PASSED, UNCHECKED, CacheEntry, model_of, place_of
from pointsman_semantic_cache.domain.kept_answers import refusal
from pointsman_semantic_cache.domain.questions import Asking
from pointsman_semantic_cache.domain.store import StoreUnavailable
from pointsman_semantic_cache.lookup import Lookup, Outcome
from pointsman_semantic_cache.surroundings import CacheSurroundings

_log = Log("cache")


class Handlers:
    """Looks answers up on a request's way in, and keeps them on its way back."""

    def __init__(self, around: CacheSurroundings) -> None:
        self._around = around

    def look_up(self, journey: Journey, hop: Hop[Journey]) -> Outcome | Awaitable[Outcome]:
        """The stored answer to a request; otherwise the journey, with a memo for the replica that stores its answer."""
        return Lookup(self._around, journey, hop).run()

    def review(self, review: ResponseReview) -> Verdict | Awaitable[Verdict]:
        """Store an answer that the client has, if it may be given again. The verdict is always that it passes."""
        around = self._around
        policy = around.configuration.revisions[review.revision].compiled
        name = review.policy or DEFAULT_CACHE
        cache = policy.caches.get(name)
        if cache is None or review.mode != AFTER or review.memo is None:
            return self._verdict(review, "not looked up")
        profile = policy.profiles.get(review.profile or "")
        try:
            memo = memos.decode(review.memo)
        except memos.MemoUnreadable:
            return self._judged(review, name, "memo unreadable")
        found = self._keep(review, memo, cache, name, guarded=profile is not None and profile.guarded)
        if isinstance(found, Verdict):
            around.flights.end_waits((memo.partition, memo.key))
            return found
        return self._landed(found, memo)

    async def _landed(self, waiting: Awaitable[Verdict], memo: memos.Memo) -> Verdict:
        try:
            return await waiting
        finally:
            self._around.flights.end_waits((memo.partition, memo.key))

    def _keep(
        self, review: ResponseReview, memo: memos.Memo, cache: Cache, name: str, *, guarded: bool
    ) -> Verdict | Awaitable[Verdict]:
        around = self._around
        # Taken even where the answer isn't kept.
        question = around.questions.take_text(Asking(review.request_id, memo.partition, memo.key))
        why_not = refusal(review, cache, guarded=guarded)
        if why_not is not None:
            return self._judged(review, name, why_not)
        if memo.partition.model != model_of(review.target):
            # A fallback answered: it isn't the model that the next one asks.
            return self._judged(review, name, "another model")
        entry = _entry(review, memo, cache, PASSED if guarded else UNCHECKED, question)
        try:
            gone = around.stores.store_of(cache).store_answer(memo.partition, entry, cache.max_bytes)
        except StoreUnavailable as problem:
            return self._judged(review, name, around.missing.note_missing("store", problem))
        return self._kept(review, name, gone) if isinstance(gone, int) else self._kept_later(review, name, gone)

    async def purge(self, query: CachePurge) -> CachePurged:
        """Forget answers."""
        around = self._around
        tenant = None if query.tenant is None else place_of(query.tenant)
        around.questions.purge_texts(query.cache, tenant)
        count = 0
        problem: str | None = None
        for name, cache in around.configuration.current.compiled.caches.items():
            if query.cache in (None, name):
                try:
                    # A database may have answers of the previous process, which no request has asked for since.
                    around.stores.store_of(cache)
                except StoreUnavailable as error:
                    problem = around.missing.note_missing("store", error)
        for store in around.stores.used_stores():
            try:
                count += await store.purge_answers(query.cache, tenant)
            except StoreUnavailable as error:
                problem = around.missing.note_missing("store", error)
        try:
            await around.stores.renew_snapshot()
            around.missing.note_recovery("snapshot")
        except StoreUnavailable as error:
            problem = around.missing.note_missing("snapshot", error)
        _log.info("purged", entries=count, cache=query.cache or "every", whole=tenant is None)
        return CachePurged(instance=around.instance, entries=count, problem=problem)

    async def _kept_later(self, review: ResponseReview, name: str, waiting: Awaitable[int]) -> Verdict:
        try:
            gone = await waiting
        except StoreUnavailable as problem:
            return self._judged(review, name, self._around.missing.note_missing("store", problem))
        return self._kept(review, name, gone)

    def _kept(self, review: ResponseReview, name: str, gone: int) -> Verdict:
        self._around.metrics.count_evicted(name, gone)
        return self._judged(review, name, None)

    def _judged(self, review: ResponseReview, name: str, why_not: str | None) -> Verdict:
        """`why_not`: in a word; None: it was kept."""
        self._around.metrics.count_kept(name, why_not, review.plan)
        return self._verdict(review, why_not or "kept")

    def _verdict(self, review: ResponseReview, note: str | None) -> Verdict:
        return Verdict(request_id=review.request_id, instance=self._around.instance, note=note)


def _entry(review: ResponseReview, memo: memos.Memo, cache: Cache, verdict: str, question: str | None) -> CacheEntry:
    now_ms = time.time_ns() // 1_000_000
    return CacheEntry(
        key=memo.key,
        body=review.body or b"",
        content_type=review.headers.get("content-type", "application/json"),
        status=review.status,
        named=review.model,
        verdict=verdict,
        usage=review.usage,
        kept_ms=now_ms,
        expires_ms=now_ms + round(cache.ttl * 1000),
        meaning=memo.meaning,
        question=None if memo.meaning is None or cache.gate.use == WORDS else question,
    )
