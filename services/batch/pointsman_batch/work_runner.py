"""Runs the items of work queues: each has one result, whichever replica takes it."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, cast

import orjson
from nats.errors import Error as NatsError

from pointsman_batch.adapters.callbacks import Callbacks
from pointsman_batch.adapters.work_queue import ACK_S, TakenItem, WorkStreams
from pointsman_batch.domain.outputs import NO_ANSWER
from pointsman_batch.domain.window import is_item_at_risk
from pointsman_batch.domain.work_items import (
    INVALID,
    ITEM_EXPIRED,
    LONGEST_WINDOW_MS,
    ItemKey,
    ItemRefused,
    WorkRequest,
    identity_of,
    read_item,
)
from pointsman_batch.line_at_work import LineAtWork
from pointsman_batch.run_tools import RunTools
from pointsman_contracts.batch import created_ms_of
from pointsman_contracts.message import JsonValue, MalformedMessage
from pointsman_contracts.work import WorkResult
from pointsman_core.config.work_queue import WorkQueue
from pointsman_core.door_answer import DoorAnswer
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.events import try_until_done
from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 1.0
"""How long a request for items waits, and how often it is looked whether there are queues."""
_AGAIN_S: Final = 5.0
"""An item whose key is in work here already comes again after so long."""
_DAY_MS: Final = 86_400_000
_MOST_TOKENS: Final = 1000
_AHEAD: Final = 4
"""Items of a queue that are taken before there is a slot for them."""
_MOST_UNKNOWN: Final = 16
"""Queues that the configuration doesn't have, whose items are refused at once."""
_FIND_UNKNOWN_S: Final = 5.0
"""How often the server is asked for them."""
_UNKNOWN_S: Final = 60.0
"""So long after its publication the queue of an item may be missing: replicas get a new configuration one by one."""

_log = Log("work-runner")

Queues = Callable[[], Mapping[str, WorkQueue]]


class WorkRunner:
    """Takes items while the configuration has queues."""

    def __init__(
        self,
        tools: RunTools,
        streams: WorkStreams,
        queues: Queues,
        now_ms: Callable[[], int],
        *,
        at_once: int,
    ) -> None:
        """`queues`: those of the configuration in use. `at_once`: most items of one that this replica has in work."""
        self._tools: Final = tools
        self._streams: Final = streams
        self._queues: Final = queues
        self._now_ms: Final = now_ms
        self._at_once: Final = at_once
        self._callbacks: Final = Callbacks()
        self._tasks: Final[dict[asyncio.Task[None], TakenItem]] = {}
        self._keys: Final[set[ItemKey]] = set()
        self._tokens: Final[dict[tuple[str, WorkQueue, bool], str]] = {}
        """Bearer tokens by day (`LineRequest.batch`), the settings of the queue, and whether items risk to expire."""

    async def run_items(self) -> None:
        """Take and run items for ever. Each queue has its own places: one whose items can't end fills no other's."""
        readers: dict[str, asyncio.Task[None]] = {}
        unknown: list[str] = []
        asked_at = -math.inf
        try:
            while True:
                if self._queues() and time.monotonic() - asked_at >= _FIND_UNKNOWN_S:
                    unknown = await self._find_unknown()
                    asked_at = time.monotonic()
                wanted = {*self._queues(), *unknown} if self._queues() else set[str]()
                await end_all([readers.pop(name) for name in readers.keys() - wanted])
                readers |= {name: asyncio.create_task(self._run_queue(name)) for name in wanted - readers.keys()}
                await asyncio.sleep(LOOK_S)
        finally:
            await end_all(readers.values())

    async def _find_unknown(self) -> list[str]:
        """Some queues that have items, and that the configuration doesn't have."""
        try:
            found = await self._streams.list_queues()
        except (NatsError, TimeoutError, OSError):
            return []  # the readers of the other queues log it
        return sorted(found - self._queues().keys())[:_MOST_UNKNOWN]

    async def _run_queue(self, name: str) -> None:
        tasks: set[asyncio.Task[None]] = set()
        problem = ""
        while True:
            # Items that wait for a slot are in memory, and other replicas could run them.
            free = min(self._at_once, self._tools.slots.pace.limit + _AHEAD) - len(tasks)
            if free <= 0:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                items = await self._streams.take_items(name, free, LOOK_S)
                problem = ""
            except (NatsError, TimeoutError, OSError) as error:
                if (words := jetstream_words(error)) != problem:
                    problem = words
                    _log.warning("items_not_taken", queue=name, problem=words)
                await asyncio.sleep(LOOK_S)
                continue
            for item in items:
                task = asyncio.create_task(self._run_item(item))
                tasks.add(task)
                self._tasks[task] = item
                task.add_done_callback(tasks.discard)
                task.add_done_callback(self._tasks.pop)

    async def close(self) -> None:
        """Stop; other replicas take the items at once."""
        items = [*self._tasks.values()]
        await end_all(self._tasks)
        for item in items:
            with suppress(NatsError, TimeoutError, OSError):  # else the server gives it to another replica by itself
                await item.return_item()
        await self._callbacks.close()

    async def _run_item(self, item: TakenItem) -> None:
        keeping = asyncio.create_task(self._extend_lease(item))
        try:
            await self._finish_item(item)
        except Exception as error:  # noqa: BLE001 - the others go on; the item comes again
            _log.error("item_failed", error, queue=item.stored.queue, sequence=item.stored.sequence)
        finally:
            await end_all((keeping,))

    async def _extend_lease(self, item: TakenItem) -> None:
        while True:
            await asyncio.sleep(ACK_S / 4)
            with suppress(NatsError, TimeoutError, OSError):
                await item.extend_lease()

    async def _finish_item(self, item: TakenItem) -> None:
        """Give an item its result, its receiver the result, and the queue the end of the item."""
        queues = self._queues()
        age_ms = self._now_ms() - item.stored.stored_ms
        if item.stored.queue not in queues and age_ms < _UNKNOWN_S * 1000:
            await item.return_item(_AGAIN_S)
            return
        try:
            request = read_item(item.stored, queues)
        except ItemRefused as refused:
            result = self._result(item, refused.key, error=INVALID, message=str(refused), param=refused.param)
            await self._write_result(refused.key, result)
            self._tools.metrics.items.labels("invalid").inc()
            await try_until_done("end of an item", item.end_item)
            return
        if request.key in self._keys:
            await item.return_item(_AGAIN_S)
            return
        self._keys.add(request.key)
        try:
            found = await self._find_result(request.key)
            if found is None:
                found = await self._write_result(
                    request.key, await self._answer_item(item, request, queues[item.stored.queue])
                )
                self._tools.metrics.items.labels(found.error or "answered").inc()
            if request.callback:
                queue = item.stored.queue
                outcome = await self._callbacks.send_result(request.callback, queue, queues[queue], found)
                self._tools.metrics.callbacks.labels(outcome).inc()
            await try_until_done("end of an item", item.end_item)
        finally:
            self._keys.discard(request.key)

    async def _answer_item(self, item: TakenItem, request: WorkRequest, queue: WorkQueue) -> WorkResult:
        left_s = (request.expires_ms - self._now_ms()) / 1000
        tools = self._tools
        work = LineAtWork(tools.gateway, tools.slots, tools.metrics, _Unleased(), request.line)
        answer: DoorAnswer | None = None
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                if await work.wait_for_slot():
                    answer = await work.answer_line(partial(self._lend, item, request, queue))
        except TimeoutError:
            pass  # it has expired
        finally:
            work.give_back()
        attempts = work.tries.attempt
        if answer is None:
            message = "The item could not be executed before its window expired."
            return self._result(item, request.key, error=ITEM_EXPIRED, message=message)
        if not answer.status:
            message = f"The gateway didn't answer: {answer.problem}."
            return self._result(item, request.key, error=NO_ANSWER, message=message, attempts=attempts)
        return WorkResult(
            id=request.key.item,
            sequence=item.stored.sequence,
            request_id=answer.request_id,
            status=answer.status,
            body=_document(answer.body),
            attempts=attempts,
            at_ms=self._now_ms(),
        )

    def _result(
        self, item: TakenItem, key: ItemKey, *, error: str, message: str, param: str | None = None, attempts: int = 0
    ) -> WorkResult:
        return WorkResult(
            id=key.item,
            sequence=item.stored.sequence,
            error=error,
            message=message,
            param=param,
            attempts=attempts,
            at_ms=self._now_ms(),
        )

    async def _find_result(self, key: ItemKey) -> WorkResult | None:
        found: list[WorkResult | None] = []

        async def find() -> None:
            try:
                found.append(await self._streams.find_result(key))
            except MalformedMessage:
                # Something else wrote on the result's subject. It stays: a second message would be a second result.
                _log.warning("result_unreadable", queue=key.queue)
                found.append(WorkResult(id=key.item, sequence=0, error=NO_ANSWER, at_ms=self._now_ms()))

        await try_until_done("result of an item", find)
        return found[-1]

    async def _write_result(self, key: ItemKey, result: WorkResult) -> WorkResult:
        written: list[WorkResult] = []

        async def write() -> None:
            written.append(await self._streams.write_once(key, result))

        await try_until_done("result of an item", write)
        return written[-1]

    async def _lend(self, item: TakenItem, request: WorkRequest, queue: WorkQueue) -> str:
        """The token of the identity that the item has now."""
        batch, stored = request.line.batch, item.stored
        urgent = is_item_at_risk(stored_ms=stored.stored_ms, expires_ms=request.expires_ms, now_ms=self._now_ms())
        key = (batch, queue, urgent)
        token = self._tokens.get(key)
        if token is None:
            expires_ms = (created_ms_of(batch) or 0) + _DAY_MS + LONGEST_WINDOW_MS
            lending, identity = self._tools.lending, identity_of(stored.queue, queue)

            async def lend() -> None:
                self._tokens[key] = await lending.lend_identity(batch, identity, expires_ms, urgent=urgent)

            await try_until_done("identity of a queue", lend)
            token = self._tokens[key]
            while len(self._tokens) > _MOST_TOKENS:
                del self._tokens[next(iter(self._tokens))]
        return token


class _Unleased:
    """A line that any replica may run; the time until which it may is its caller's."""

    @property
    def goes_on(self) -> bool:
        """See `Leave.goes_on`."""
        return True

    @property
    def is_held(self) -> bool:
        """See `Leave.is_held`: two replicas that run one item have one result and one charge."""
        return True


def _document(body: bytes) -> JsonValue:
    try:
        return cast("JsonValue", orjson.loads(body))
    except ValueError:
        return body.decode("utf-8", "replace")
