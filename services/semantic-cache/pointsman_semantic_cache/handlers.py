"""What the semantic-cache is asked on the bus."""

import time

from pointsman_contracts.cache import CachePurge, CachePurged
from pointsman_contracts.journey import AFTER, Journey
from pointsman_contracts.reply import Answer
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_core.config import DEFAULT_CACHE, Cache
from pointsman_runtime.logs import Log
from pointsman_runtime.stage import Hop
from pointsman_semantic_cache.domain import memo as memos
from pointsman_semantic_cache.domain.entry import PASSED, UNCHECKED, Entry, model_of
from pointsman_semantic_cache.domain.keeping import refusal
from pointsman_semantic_cache.domain.store import StoreUnavailable
from pointsman_semantic_cache.lookup import Lookup
from pointsman_semantic_cache.surroundings import Surroundings

_log = Log("cache")


class Handlers:
    """Looks answers up on a request's way in, and keeps them on its way back."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def look_up(self, journey: Journey, hop: Hop[Journey]) -> Journey | Answer:
        """The answer to a request that was answered before; otherwise the journey, with a memo for whoever keeps the
        answer to this one."""
        return await Lookup(self._around, journey, hop).run()

    async def review(self, review: ResponseReview) -> Verdict:
        """Keep an answer that the client has, if it may be given again. What is said of it is always that it passes."""
        around = self._around
        policy = around.configuration.at(review.revision).compiled
        name = review.policy or DEFAULT_CACHE
        cache = policy.caches.get(name)
        if cache is None or review.mode != AFTER or review.memo is None:
            return self._verdict(review, None)
        profile = policy.profiles.get(review.profile or "")
        guarded = profile is not None and profile.guarded
        why_not = refusal(review, cache, guarded=guarded)
        if why_not is None:
            why_not = await self._keep(review, review.memo, cache, guarded=guarded)
        around.metrics.kept(name, why_not)
        return self._verdict(review, why_not or "kept")

    async def purge(self, query: CachePurge) -> CachePurged:
        """Forget answers."""
        around = self._around
        count = 0
        problem: str | None = None
        for store in around.stores.all():
            try:
                count += await store.purge(query.cache, query.tenant)
            except StoreUnavailable as error:
                problem = around.missing.note("store", error)
        _log.info("purged", entries=count, cache=query.cache or "every", whole=query.tenant is None)
        return CachePurged(instance=around.instance, entries=count, problem=problem)

    async def _keep(self, review: ResponseReview, memo_text: str, cache: Cache, *, guarded: bool) -> str | None:
        """Why it wasn't kept, in a word; None when it was."""
        around = self._around
        try:
            memo = memos.decode(memo_text)
        except memos.MemoUnreadable:
            return "memo unreadable"
        if memo.partition.model != model_of(review.target):
            # A fallback answered: it isn't the model that the next one asks.
            return "another model"
        now_ms = time.time_ns() // 1_000_000
        entry = Entry(
            key=memo.key,
            body=review.body or b"",
            content_type=review.headers.get("content-type", "application/json"),
            status=review.status,
            named=review.model,
            verdict=PASSED if guarded else UNCHECKED,
            usage=review.usage,
            kept_ms=now_ms,
            expires_ms=now_ms + round(cache.ttl * 1000),
            meaning=memo.meaning,
        )
        try:
            gone = await around.stores.of(cache).put(memo.partition, entry, cache.max_bytes)
        except StoreUnavailable as problem:
            return around.missing.note("store", problem)
        around.metrics.evicted(memo.partition.cache, gone)
        return None

    def _verdict(self, review: ResponseReview, note: str | None) -> Verdict:
        return Verdict(request_id=review.request_id, instance=self._around.instance, note=note)
