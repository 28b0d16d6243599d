"""Sends copies, compares their answers with the first ones, and publishes the comparisons."""

import asyncio
import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from nats.errors import Error as NatsError

from pointsman_apis import named
from pointsman_contracts.mirroring import MirrorCompared, MirroredAnswer
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.response_stage import ResponseReview
from pointsman_core.config import Mirror
from pointsman_core.prices import Prices
from pointsman_edge.reviewing.answer_texts import texts_of_stream, texts_of_whole
from pointsman_edge.reviewing.whole_answer import WholeAnswer
from pointsman_mirror.adapters.door import CopyAnswer, GatewayDoor
from pointsman_mirror.adapters.identities import Identities
from pointsman_mirror.domain.comparing import compare_texts
from pointsman_mirror.metrics import MirrorMetrics
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.missing import Missing

COPY_PREFIX: Final = "mirror-"
"""Begins the ids of copies, which are never copied."""
_TRIES: Final = 20
"""Times that a copy is sent while its identity isn't known yet."""
_UNKNOWN_YET_S: Final = 0.25
_PAUSE_S: Final = 5.0
"""After a refusal for lack of room that doesn't say how long."""
_LONGEST_PAUSE_S: Final = 60.0
_END_S: Final = 2.0
"""How long the report of a copy's end is awaited behind its answer."""
_NO_ROOM: Final = frozenset({402, 429, 503, 529})
"""A spent budget, spent limits, full engines."""

_log = Log("mirror")


Publish = Callable[[MirrorCompared, str], None]
"""Publishes an event of a mirror. Raises BusError."""


class Copies(NamedTuple):
    """The copies of one request."""

    review: ResponseReview
    name: str
    """Of the mirror."""
    mirror: Mirror
    prices: Prices
    bodies: dict[str, bytes]
    """By model."""


class Copier:
    """The copies of this process. No client waits for any of them."""

    def __init__(
        self, instance: str, door: GatewayDoor, identities: Identities, publish: Publish, metrics: MirrorMetrics
    ) -> None:
        self._instance: Final = instance
        self._door: Final = door
        self._identities: Final = identities
        self._publish: Final = publish
        self._metrics: Final = metrics
        self._numbers: Final[defaultdict[str, Iterator[int]]] = defaultdict(lambda: itertools.count(1))
        self._open: Final[defaultdict[str, int]] = defaultdict(int)
        """Copies that are open or about to be, by mirror."""
        self._paused: Final[dict[str, float]] = {}
        """Monotonic seconds until which a mirror sends nothing."""
        self._ends: Final[dict[str, asyncio.Future[ResponseCompleted]]] = {}
        """Of open copies, by id."""
        self._missing: Final = Missing(_log)
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    @property
    def open_copies(self) -> int:
        """Copies that are open."""
        return len(self._tasks)

    def take_room(self, name: str, mirror: Mirror) -> str | None:
        """Take room for the copies of one request, or say why there is none. Nothing waits: what has no room now isn't
        mirrored."""
        if time.monotonic() < self._paused.get(name, 0.0):
            return "paused"
        if self._open[name] + len(mirror.to) > mirror.at_once:
            return "busy"
        self._open[name] += len(mirror.to)
        return None

    def give_back(self, name: str, copies: int) -> None:
        """Room that is not needed."""
        self._open[name] -= copies

    def note_end(self, event: ResponseCompleted) -> None:
        """Any request ended."""
        end = self._ends.get(event.request_id)
        if end is not None and not end.done():
            end.set_result(event)

    def begin_copies(self, copies: Copies) -> None:
        """Send each copy; room was taken for each."""
        for model, body in copies.bodies.items():
            task = asyncio.get_running_loop().create_task(self._run_copy(copies, model, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the copies that are open."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._door.close()

    async def _run_copy(self, copies: Copies, model: str, body: bytes) -> None:
        copy_id = copy_id_of(copies.review, model)
        try:
            answer = await self._send_copy(copies, copy_id, body)
            if answer.status in _NO_ROOM and not answer.failure:
                pause_s = min(answer.retry_after_s or _PAUSE_S, _LONGEST_PAUSE_S)
                self._paused[copies.name] = time.monotonic() + pause_s
            end = await self._wait_for_end(copy_id)
            self._publish_comparison(self._compare(copies, model, copy_id, answer, end))
        except Exception as error:  # noqa: BLE001 - a failed copy stops no other one
            self._metrics.copies.labels(copies.name, model, "error").inc()
            _log.error("copy_failed", error, mirror=copies.name, model=model)
        finally:
            self._ends.pop(copy_id, None)
            self._open[copies.name] -= 1

    async def _send_copy(self, copies: Copies, copy_id: str, body: bytes) -> CopyAnswer:
        try:
            token = await self._identities.find_token(copies.name, copies.mirror)
        except (NatsError, TimeoutError) as error:
            self._missing.note_missing("the identity of copies", error)
            return CopyAnswer(None, failure="failed", reason="no identity could be lent")
        self._missing.note_recovery("the identity of copies")
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "x-request-id": copy_id,
            # An answer from a cache says nothing of the model.
            "cache-control": "no-store",
        }
        path = named(copies.review.api).path
        tries = 0
        while True:
            self._ends[copy_id] = asyncio.get_running_loop().create_future()
            answer = await self._door.send_copy(path, body, headers, copies.mirror.within)
            tries += 1
            if answer.status != 401 or answer.code != "lent_identity_unknown" or tries == _TRIES:
                return answer
            await asyncio.sleep(_UNKNOWN_YET_S)

    async def _wait_for_end(self, copy_id: str) -> ResponseCompleted | None:
        """The report of the copy's edge, which has times and cost as those of the original are; None without one."""
        end = self._ends.get(copy_id)
        if end is None:
            return None
        await asyncio.wait((end,), timeout=_END_S)
        return end.result() if end.done() else None

    def _publish_comparison(self, event: MirrorCompared) -> None:
        self._metrics.copies.labels(event.mirror, event.copy.model, event.outcome).inc()
        try:
            self._publish(event, event.mirror)
        except BusError as error:
            self._metrics.unpublished.inc()
            _log.debug("unpublished", reason=str(error))

    def _compare(
        self, copies: Copies, model: str, copy_id: str, answer: CopyAnswer, end: ResponseCompleted | None
    ) -> MirrorCompared:
        review, prices = copies.review, copies.prices
        api = named(review.api)
        outcome, reason = answer.failure, answer.reason
        texts = None
        if not outcome and answer.status is not None and answer.status >= 300:
            outcome, reason = "refused", answer.code or f"status {answer.status}"
        elif not outcome:
            whole = (
                texts_of_stream(api, answer.body) if review.stream else texts_of_whole(WholeAnswer(api, answer.body))
            )
            failed = any(text.kind == "error" for text in whole or ())
            outcome, reason = ("failed", "it ended with an error") if failed else ("answered", "")
            texts = None if failed else whole
        likeness = compare_texts(None if review.truncated else review.texts, texts)
        return MirrorCompared(
            source=self._instance,
            sequence=next(self._numbers[copies.name]),
            at_ms=time.time_ns() // 1_000_000,
            request_id=review.request_id,
            edge=review.edge,
            mirror=copies.name,
            copy_id=copy_id,
            api=review.api,
            stream=review.stream,
            outcome=outcome,
            reason=reason,
            original=MirroredAnswer(
                model=(review.model or "") if review.target is None else prices.find_name(review.target, review.model),
                status=review.status,
                ttft_ms=review.ttft_ms,
                duration_ms=review.duration_ms,
                usage=review.usage,
                cost_nanos=review.cost_nanos,
            ),
            copy=MirroredAnswer(
                model=model,
                status=answer.status,
                ttft_ms=None if end is None else end.ttft_ms,
                duration_ms=None if end is None else end.duration_ms,
                usage=None if end is None else end.usage,
                cost_nanos=None if end is None else end.cost_nanos,
            ),
            same_text=likeness.same_text,
            likeness=likeness.likeness,
            same_calls=likeness.same_calls,
        )


def copy_id_of(review: ResponseReview, model: str) -> str:
    """The id of a request's copy for a model: the same one whenever, and by whichever process, it is made."""
    named_by = "\0".join((review.edge, review.request_id, review.policy or "", model))
    return f"{COPY_PREFIX}{hashlib.sha256(named_by.encode()).hexdigest()[:20]}"
