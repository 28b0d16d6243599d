"""Sends copies, compares their answers with the first ones, and publishes the comparisons."""

import asyncio
import hashlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from nats.errors import Error as NatsError

from pointsman_apis import named
from pointsman_contracts.mirroring import MirrorCompared, MirroredAnswer
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.response_stage import ResponseReview
from pointsman_core.config import DEFAULT_MIRROR, Mirror
from pointsman_core.door_answer import DoorAnswer
from pointsman_core.header_names import MIRRORED
from pointsman_edge.reviewing.answer_texts import texts_of_stream, texts_of_whole
from pointsman_edge.reviewing.whole_answer import WholeAnswer
from pointsman_hosting.own_door import OwnDoor
from pointsman_mirror.domain.comparing import compare_texts
from pointsman_mirror.identities import Identities
from pointsman_mirror.metrics import MirrorMetrics
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

COPY_PREFIX: Final = "mirror-"
"""Begins the ids of copies, which are never copied."""
UNKNOWN_YET_S: Final = 0.25
"""After it a copy whose identity isn't known yet is sent again."""
_TRIES: Final = 20
"""Times that it is sent."""
_PAUSE_S: Final = 5.0
"""After a refusal for lack of room that doesn't say how long."""
_LONGEST_PAUSE_S: Final = 60.0
_END_S: Final = 2.0
"""How long the report of a copy's end is awaited behind its answer."""
_NO_ROOM: Final = frozenset({402, 429, 503, 529})
"""A spent budget, spent limits, full engines."""
# An answer from a cache says nothing of the model.
_HEADERS: Final = {MIRRORED: "pointsman", "cache-control": "no-store"}

_log = Log("mirror")


class Copier:
    """The copies of this process. No client waits for any of them."""

    def __init__(
        self,
        instance: str,
        door: OwnDoor,
        identities: Identities,
        publish: Callable[[MirrorCompared, str], None],
        metrics: MirrorMetrics,
    ) -> None:
        self._instance: Final = instance
        self._door: Final = door
        self._identities: Final = identities
        self._publish: Final = publish
        self._metrics: Final = metrics
        self._numbers: Final[defaultdict[str, Iterator[int]]] = defaultdict(lambda: itertools.count(1))
        self._taken: Final[Counter[str]] = Counter()
        """Copies that are open or about to be, by mirror."""
        self._paused: Final[dict[str, float]] = {}
        """Monotonic seconds until which a mirror sends nothing."""
        self._ends: Final[dict[str, asyncio.Future[ResponseCompleted]]] = {}
        """Of open copies, by id."""
        self._missing: Final = Missing(_log)
        self._tasks: Final[set[asyncio.Task[object]]] = set()

    @property
    def open_copies(self) -> int:
        """Copies that are open."""
        return len(self._tasks)

    def take_room(self, name: str, mirror: Mirror) -> str | None:
        """Take room for the copies of one request, or say why there is none. Nothing waits: what has no room now isn't
        mirrored."""
        if time.monotonic() < self._paused.get(name, 0.0):
            return "paused"
        if self._taken[name] + len(mirror.to) > mirror.at_once:
            return "busy"
        self._taken[name] += len(mirror.to)
        return None

    def give_back(self, name: str, copies: int) -> None:
        """Room that is not needed."""
        self._taken[name] -= copies

    def note_end(self, event: ResponseCompleted) -> None:
        """Any request ended. A copy whose identity isn't known yet is sent again under its id."""
        end = self._ends.get(event.request_id)
        if end is not None and not end.done() and event.status != 401:
            end.set_result(event)

    def begin_copies(self, review: ResponseReview, mirror: Mirror, bodies: Mapping[str, bytes]) -> None:
        """Send each copy (model → body); room was taken for each."""
        for model, body in bodies.items():
            task = asyncio.get_running_loop().create_task(self._run_copy(review, mirror, model, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the copies that are open."""
        await end_all(self._tasks)
        await self._door.close()

    async def _run_copy(self, review: ResponseReview, mirror: Mirror, model: str, body: bytes) -> None:
        name, copy_id = name_of(review), copy_id_of(review, model)
        self._ends[copy_id] = end = asyncio.get_running_loop().create_future()
        try:
            answer = await self._have_answered(review, mirror, copy_id, body)
            if answer.status in _NO_ROOM:
                pause_s = min(answer.retry_after_s or _PAUSE_S, _LONGEST_PAUSE_S)
                self._paused[name] = time.monotonic() + pause_s
            if answer.failure != "unsent":
                await asyncio.wait((end,), timeout=_END_S)
            event = self._compare(review, model, answer, end.result() if end.done() else None)
            self._publish(event, name)
            self._metrics.copies.labels(name, model, event.outcome).inc()
        except Exception as error:  # noqa: BLE001 - a failed copy stops no other one
            self._metrics.copies.labels(name, model, "error").inc()
            _log.error("copy_failed", error, mirror=name, model=model)
        finally:
            del self._ends[copy_id]
            self._taken[name] -= 1

    async def _have_answered(self, review: ResponseReview, mirror: Mirror, copy_id: str, body: bytes) -> DoorAnswer:
        """The answer to a copy, within the time that the mirror gives it."""
        name, path = name_of(review), named(review.api).path
        try:
            token = await self._identities.find_token(name, mirror)
        except (NatsError, TimeoutError) as error:
            self._missing.note_missing("the identity of copies", error)
            return DoorAnswer(0, b"", failure="unsent", problem="no identity could be lent")
        self._missing.note_recovery("the identity of copies")
        try:
            async with asyncio.timeout(mirror.within):
                tries = 1
                while (
                    answer := await self._door.send_request(path, body, token, copy_id, _HEADERS)
                ).identity_unknown and tries < _TRIES:
                    tries += 1
                    await asyncio.sleep(UNKNOWN_YET_S)
        except TimeoutError:
            return DoorAnswer(0, b"", failure="late", problem=f"no whole answer within {mirror.within:g} s")
        if answer.identity_unknown:
            self._identities.forget_token(name)
        return answer

    def _compare(
        self, review: ResponseReview, model: str, answer: DoorAnswer, end: ResponseCompleted | None
    ) -> MirrorCompared:
        outcome, reason, texts = answer.failure or "answered", answer.problem, None
        if outcome == "unsent":
            outcome = "failed"
        elif answer.status >= 300:
            outcome, reason = "refused", f"status {answer.status}"
        elif answer.status:
            api = named(review.api)
            streamed = review.stream
            texts = texts_of_stream(api, answer.body) if streamed else texts_of_whole(WholeAnswer(api, answer.body))
            if any(text.kind == "error" for text in texts or ()):
                outcome, reason, texts = "failed", "it ended with an error", None
        return MirrorCompared(
            source=self._instance,
            sequence=next(self._numbers[name_of(review)]),
            at_ms=time.time_ns() // 1_000_000,
            request_id=review.request_id,
            edge=review.edge,
            mirror=name_of(review),
            copy_id=copy_id_of(review, model),
            api=review.api,
            stream=review.stream,
            outcome=outcome,
            reason=reason,
            original=_measured(review.served or "", review.status, review),
            copy=_measured(model, answer.status or None, end),
            likeness=compare_texts(None if review.truncated else review.texts, texts),
        )


def name_of(review: ResponseReview) -> str:
    """The name of the mirror that is asked."""
    return review.policy or DEFAULT_MIRROR


def copy_id_of(review: ResponseReview, model: str) -> str:
    """The id of a request's copy for a model: the same one whenever, and by whichever process, it is made."""
    named_by = "\0".join((review.edge, review.request_id, review.policy or "", model))
    return f"{COPY_PREFIX}{hashlib.sha256(named_by.encode()).hexdigest()[:20]}"


def _measured(model: str, status: int | None, end: ResponseReview | ResponseCompleted | None) -> MirroredAnswer:
    """An answer with the times, tokens and cost of its request's end."""
    if end is None:
        return MirroredAnswer(model=model, status=status)
    return MirroredAnswer(
        model=model,
        status=status,
        ttft_ms=end.ttft_ms,
        duration_ms=end.duration_ms,
        usage=end.usage,
        cost_nanos=end.cost_nanos,
    )
