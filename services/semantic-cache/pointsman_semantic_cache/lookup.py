"""The lookup of one request: a stored answer, or a memo for the replica that stores the answer to come."""

import time
from collections.abc import Awaitable, Sequence
from typing import Final

from pointsman_apis import named
from pointsman_contracts.guarding import Guarded
from pointsman_contracts.identity import plan_of
from pointsman_contracts.journey import HeaderEdit, Journey, JourneyChanges, Stage
from pointsman_contracts.reply import Answer
from pointsman_core.config import DEFAULT_CACHE, WORDS, Cache, Embeddings
from pointsman_embedding.carried_vector import carried
from pointsman_embedding.embedder import EmbedderUnavailable
from pointsman_journey.content_client import ContentGone, ContentUnusable
from pointsman_journey.hop import Hop
from pointsman_journey.routing_slip import in_shadow
from pointsman_runtime.bus.errors import BusError
from pointsman_semantic_cache.domain import memo as memos
from pointsman_semantic_cache.domain.asked import CacheQuestion, asked
from pointsman_semantic_cache.domain.entry import PASSED, CacheEntry, Meaning, Partition
from pointsman_semantic_cache.domain.finding import Found
from pointsman_semantic_cache.domain.gate.reading import read as signature_of
from pointsman_semantic_cache.domain.model_gate import GateUnavailable
from pointsman_semantic_cache.domain.partitioning import nameless, partition_of
from pointsman_semantic_cache.domain.policy import GUARD
from pointsman_semantic_cache.domain.questions import Asking
from pointsman_semantic_cache.domain.store import EntryStore, StoreUnavailable
from pointsman_semantic_cache.domain.wishes import Wishes, wishes
from pointsman_semantic_cache.flights import Key
from pointsman_semantic_cache.judging import judge
from pointsman_semantic_cache.surroundings import CacheSurroundings

SERVICE: Final = "semantic-cache"
HEADER: Final = "x-pointsman-cache"
"""Header of every answer that passed by here: `hit`, `semantic`, `miss`, `bypass`."""


Outcome = Journey | Answer


class Lookup:
    """The lookup of one request. Without a missing part, e.g. the store, the request continues degraded."""

    def __init__(self, around: CacheSurroundings, journey: Journey, hop: Hop[Journey]) -> None:
        self._around = around
        self._journey = journey
        self._hop = hop
        self._name = journey.itinerary[0].policy or DEFAULT_CACHE
        self._wished = wishes(journey.request.headers)
        self._guarded = Guarded.from_attributes(journey.request.attributes)
        self._now_ms = time.time_ns() // 1_000_000
        self._counts = not journey.request.dry_run
        self._flight: Key | None = None
        """Where others wait for the answer to this request."""
        self._waited = False
        self._text: str | None = None
        """The question's, for the entry of its answer, where a model compares texts."""

    def run(self) -> Outcome | Awaitable[Outcome]:
        """The answer, or the journey; an awaitable when a store or an embedder has to be asked."""
        journey, around = self._journey, self._around
        policy = around.configuration.revisions[journey.revision].compiled
        cache = policy.caches.get(self._name)
        if cache is None:
            return self._go_on("bypass", f"no cache {self._name}")
        why_not = _passed_by(journey, cache, self._wished, self._guarded)
        if why_not is not None:
            return self._go_on("bypass", why_not)
        partition = partition_of(journey, self._name, cache, policy, self._guarded)
        exact = journey.request.fingerprint
        return self._exactly(cache, memos.Memo(partition, exact)) if exact else self._of_the_body(cache, partition)

    async def _of_the_body(self, cache: Cache, partition: Partition) -> Outcome:
        """The question of a request that has no fingerprint yet."""
        question = await self._question()
        if not isinstance(question, CacheQuestion):
            return question
        found = self._exactly(cache, memos.Memo(partition, question.exact), question)
        return await found if isinstance(found, Awaitable) else found

    def _exactly(
        self, cache: Cache, memo: memos.Memo, question: CacheQuestion | None = None
    ) -> Outcome | Awaitable[Outcome]:
        """The answer to an identical request, else the next outcome. `question`: None before the body is read."""
        entry = None
        try:
            store = self._around.stores.store_of(cache)
            if self._wished.look:
                entry = store.find_exact(memo.partition, memo.key, self._now_ms, uses=self._counts)
        except StoreUnavailable as problem:
            return self._without("store", problem)
        if entry is not None and isinstance(entry, Awaitable):
            return self._found_later(cache, store, memo, entry, question)
        return self._found(cache, store, memo, entry, question)

    async def _found_later(
        self,
        cache: Cache,
        store: EntryStore,
        memo: memos.Memo,
        waiting: Awaitable[CacheEntry | None],
        question: CacheQuestion | None,
    ) -> Outcome:
        try:
            entry = await waiting
        except StoreUnavailable as problem:
            return self._without("store", problem)
        found = self._found(cache, store, memo, entry, question)
        return await found if isinstance(found, Awaitable) else found

    def _found(
        self,
        cache: Cache,
        store: EntryStore,
        memo: memos.Memo,
        entry: CacheEntry | None,
        question: CacheQuestion | None,
    ) -> Outcome | Awaitable[Outcome]:
        self._around.missing.note_recovery("store")
        if entry is not None and self._young_enough(entry):
            return self._answered(cache, entry, "hit", "the same request")
        if self._follows(cache, memo):
            return self._follow(cache, memo, question)
        if cache.embeddings is None:
            return self._go_on("miss", "nothing alike", memo=memo)
        return self._by_meaning(cache, cache.embeddings, store, memo, question)

    def _follows(self, cache: Cache, memo: memos.Memo) -> bool:
        """Whether the same request is under way already, and its answer is waited for."""
        around, journey = self._around, self._journey
        if not (cache.single_flight and self._wished.look and self._counts and self._keeps()):
            return False
        if not around.alone():
            # Another process may keep the answer, and this one doesn't hear of it.
            return False
        wait_s = min(cache.wait, around.configuration.revisions[journey.revision].compiled.longest_wait_s)
        flight = (memo.partition, memo.key)
        if around.flights.may_lead(flight, journey.request_id, wait_s):
            self._flight = flight
            return False
        return not self._waited

    def _keeps(self) -> bool:
        """Whether this stage gets the answer, too."""
        journey = self._journey
        for stage in journey.response:
            if stage.service == SERVICE and _named(stage) == self._name:
                return not in_shadow(journey)
        return False

    async def _follow(self, cache: Cache, memo: memos.Memo, question: CacheQuestion | None) -> Outcome:
        """Wait for the answer to the same request; without one, go on as if nothing had been under way."""
        flights, flight = self._around.flights, (memo.partition, memo.key)
        self._waited = True
        self._hop.finish(self._hop.park("the same request is under way", round(flights.left_s(flight) * 1000)))
        await flights.wait(flight)
        self._now_ms = time.time_ns() // 1_000_000
        found = self._exactly(cache, memo, question)
        return await found if isinstance(found, Awaitable) else found

    async def _by_meaning(
        self, cache: Cache, embeddings: Embeddings, store: EntryStore, memo: memos.Memo, question: CacheQuestion | None
    ) -> Outcome:
        around = self._around
        if question is None:
            read = await self._question(memo)
            if not isinstance(read, CacheQuestion):
                return read
            question = read
        if not question.turn:
            return self._go_on("miss", "nothing alike", memo=memo)
        try:
            embedder = await around.embedders.get(embeddings)
            vector = carried(self._journey.request.attributes, embedder.name, question.turn)
            if vector is None:
                with around.metrics.time_embedding():
                    vector = await embedder.embed(question.turn)
        except EmbedderUnavailable as problem:
            return self._without("embeddings", problem, memo)
        around.missing.note_recovery("embeddings")
        if vector is None:
            return self._go_on("miss", "too long, or without words", memo=memo)
        # A service may come to answer with another model's vectors under the same name; those can't be compared.
        space = f"{embedder.name}:{len(vector)}"
        meaning = Meaning(question.context, space, vector, signature_of(question.turn))
        memo = memo._replace(meaning=meaning)
        if cache.gate.use != WORDS:
            self._text = question.turn
        if not self._wished.look:
            return self._go_on("miss", "a new one was asked for", memo=memo)
        threshold = embeddings.threshold or embedder.threshold
        try:
            near = await store.find_near(memo.partition, meaning, threshold, self._now_ms)
        except StoreUnavailable as problem:
            return self._without("store", problem, memo)
        close = [each for each in near if self._young_enough(each.entry)]
        try:
            found = await judge(
                around=around, name=self._name, gate=cache.gate, question=question.turn, meaning=meaning, near=close
            )
        except GateUnavailable as problem:
            return self._without("gate", problem, memo)
        for reason in found.refused if self._counts else ():
            around.metrics.count_refusal(self._name, reason)
        if found.entry is None:
            return self._go_on("miss", f"{embedder.name}: {_refused(found)}", memo=memo)
        by = f"{embedder.name} {found.similarity:.3f}"
        judged = f", {found.judged}" if found.judged else ""
        return self._answered(cache, found.entry, "semantic", by + judged)

    async def _question(self, memo: memos.Memo | None = None) -> CacheQuestion | Journey:
        """The question in the request's body; the journey when the edge no longer holds a body."""
        journey, around = self._journey, self._around
        try:
            body = await around.content.fetch_body(journey.edge, journey.request_id)
        except ContentGone:
            # Its client has left; the next stage finds that too.
            return self._go_on("bypass", "no longer held by its edge")
        except (BusError, ContentUnusable) as problem:
            return self._without("content", problem, memo)
        around.missing.note_recovery("content")
        return asked(journey.request.api, body, journey.body) or self._go_on("bypass", "not a JSON object")

    def _without(self, what: str, problem: Exception, memo: memos.Memo | None = None) -> Journey:
        """The journey, degraded, because a part is missing."""
        return self._go_on("miss", "unavailable", memo=memo, missing=self._around.missing.note_missing(what, problem))

    def _answered(self, cache: Cache, entry: CacheEntry, result: str, note: str) -> Answer:
        self._land()
        self._count_result(result)
        age_s = max(0, self._now_ms - entry.kept_ms) // 1000
        # An answer that the guard passed needs no second check while the guard's policy is the same. Every other
        # response stage checks this answer.
        checked = {SERVICE, GUARD} if entry.verdict == PASSED and self._guarded is not None else {SERVICE}
        return self._hop.answer(
            entry.body,
            content_type=entry.content_type,
            status=entry.status,
            named=entry.named,
            usage=entry.usage if cache.count_tokens else None,
            saved=None if cache.count_tokens else entry.usage,
            response=tuple(stage for stage in self._journey.response if stage.service not in checked),
            answer_headers=(HeaderEdit(name=HEADER, value=result), HeaderEdit(name="age", value=str(age_s))),
            note=f"{result}, {age_s} s old: {note}",
        )

    def _go_on(self, result: str, note: str, *, memo: memos.Memo | None = None, missing: str | None = None) -> Journey:
        journey = self._journey
        if memo is None:
            self._land()
        self._count_result("failed" if missing is not None else result)
        changes: JourneyChanges = {
            "answer_headers": (*journey.answer_headers, HeaderEdit(name=HEADER, value=result)),
        }
        if memo is not None:
            if self._text is not None and self._counts and self._keeps():
                asking = Asking(journey.request_id, memo.partition, memo.key)
                self._around.questions.remember_text(asking, self._text, time.monotonic())
            changes["response"] = _with_memo(journey.response, self._name, memos.encode(memo))
        if missing is not None:
            changes["level"] = "degraded"
            changes["reasons"] = (*journey.reasons, f"{SERVICE}: {missing}")
        return self._hop.advance(note=f"{result}: {note}", **changes)

    def _count_result(self, result: str) -> None:
        if self._counts:
            self._around.metrics.looked_up(self._name, result, plan_of(self._journey.request.attributes))

    def _land(self) -> None:
        """End the wait of identical requests: no answer to this one will be stored."""
        if self._flight is not None:
            self._around.flights.end_waits(self._flight)

    def _young_enough(self, entry: CacheEntry) -> bool:
        max_age_s = self._wished.max_age_s
        return max_age_s is None or self._now_ms - entry.kept_ms <= max_age_s * 1000


def _passed_by(journey: Journey, cache: Cache, wished: Wishes, guarded: Guarded | None) -> str | None:
    """Why a request isn't looked up at all."""
    if not wished.keep:
        return "no-store"
    if not named(journey.request.api).complete:
        return "answers of this API aren't kept"
    if journey.target is None:
        return "no model yet"
    if guarded is not None and guarded.restores:
        return "the guard restores the client's own data"
    if nameless(journey):
        return "neither tenant nor subject"
    if cache.max_temperature is not None and named(journey.request.api).generates:
        temperature = journey.request.fields.get("temperature")
        if not isinstance(temperature, int | float) or temperature > cache.max_temperature:
            return "temperature"
    return None


def _refused(found: Found) -> str:
    return f"close, but for {', '.join(dict.fromkeys(found.refused))}" if found.refused else "nothing close"


def _named(stage: Stage) -> str:
    return stage.policy or DEFAULT_CACHE


def _with_memo(stages: Sequence[Stage], name: str, memo: str) -> tuple[Stage, ...]:
    return tuple(
        [stage.noted(memo) if stage.service == SERVICE and _named(stage) == name else stage for stage in stages]
    )
