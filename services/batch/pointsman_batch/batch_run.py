"""Runs one batch from its validation to its output, with a lease that another replica takes over when this one dies."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace
from nats.errors import Error as NatsError

from pointsman_batch.adapters.files import ContentLost
from pointsman_batch.batch_output import BatchOutput, ResultMissing, WrittenOutput, input_lines
from pointsman_batch.domain.lines import (
    MOST_PROBLEMS,
    BatchLine,
    LineRefused,
    LineRequest,
    LineTooLong,
    check_unseen,
    read_line,
)
from pointsman_batch.domain.outputs import (
    CANCELLED,
    EXPIRED,
    INPUT_LOST,
    MESSAGES,
    NO_ANSWER,
    RESULT_LOST,
    kind_of,
)
from pointsman_batch.domain.verdict import LineTries
from pointsman_batch.domain.window import is_batch_at_risk
from pointsman_batch.line_at_work import LOOK_S, LineAtWork
from pointsman_batch.run_tools import RunTools
from pointsman_contracts.batch import ENDED, KEY_REVOKED, BatchRecord, LineProblem, LineResult
from pointsman_core.door_answer import DoorAnswer
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.jetstream.events import try_until_done
from pointsman_runtime.telling.logs import Log

RENEW_S: Final = 1.0
"""How often the runner of a batch renews its lease."""
MOST_OPEN: Final = 256
"""Lines of a batch that are at work, or wait until they begin again."""
LEASE_S: Final = 8.0
"""A batch whose record stands still for this long has no runner. Replicas measure it by their own clocks."""

_log = Log("batch-run")


class LeaseLost(Exception):
    """Another replica runs the batch, or may."""


class BatchRun:
    """One batch that this replica has the lease of."""

    def __init__(self, tools: RunTools, record: BatchRecord, now_ms: Callable[[], int]) -> None:
        self._tools: Final = tools
        self._now_ms: Final = now_ms
        self._record = record
        self._renewed = time.monotonic()
        self._done = bytearray()
        """1 for each line that has a result."""
        self._completed = 0
        self._failed = 0
        self._tokens: Final[dict[bool, str]] = {}
        """The tokens of the lent identities, by whether lines risk to expire."""
        self._lending: Final = asyncio.Lock()
        self._working: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        """Set when the record or a line changed."""

    @property
    def batch(self) -> str:
        """The id."""
        return self._record.id

    def take_record(self, record: BatchRecord) -> None:
        """The record was changed, e.g. by a client that cancels the batch."""
        self._record = record
        self._changed.set()

    async def run(self) -> None:
        """Do all that is left to do. Raises LeaseLost."""
        beating = asyncio.create_task(self._beat())
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait((beating, working), return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            working.result()
        finally:
            await end_all((beating, working))
            await end_all(self._working)
            for token in self._tokens.values():
                # Otherwise it ends by itself, soon after its batch.
                with suppress(NatsError, TimeoutError, OSError):
                    await self._tools.lending.take_back(token)

    async def release(self) -> None:
        """Let another replica run the batch at once."""
        try:
            await self._tools.batches.change_batch(
                self.batch, lambda record: replace(record, runner="") if record.runner == self._tools.instance else None
            )
        except (NatsError, TimeoutError, OSError):
            return  # the lease ends by itself

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                async with asyncio.timeout(LEASE_S / 2):
                    await self._change(self._progress)
            except (NatsError, TimeoutError, OSError):
                if time.monotonic() - self._renewed > LEASE_S:
                    raise LeaseLost(self.batch) from None

    def _progress(self, record: BatchRecord) -> BatchRecord:
        return replace(record, beat=record.beat + 1, completed=self._completed, failed=self._failed)

    async def _change(self, change: Callable[[BatchRecord], BatchRecord | None]) -> None:
        """Change the record while this replica is its runner. Raises LeaseLost."""

        def mine(record: BatchRecord) -> BatchRecord | None:
            if record.runner != self._tools.instance:
                raise LeaseLost(record.id)
            return change(record)

        changed = await self._tools.batches.change_batch(self.batch, mine)
        if changed is None:
            raise LeaseLost(self.batch)
        self._renewed = time.monotonic()
        self._record = changed

    async def _surely_change(self, change: Callable[[BatchRecord], BatchRecord | None]) -> None:
        await try_until_done("batch record", lambda: self._change(change))

    async def _work(self) -> None:
        try:
            if self._record.status == "validating":
                await self._validate()
            if self._record.status == "in_progress":
                await self._run_lines()
            if self._record.status not in ENDED:
                await self._finish()
        except ContentLost:
            await self._surely_change(self._without_input)
            if self._record.status not in ENDED:
                await self._finish()

    def _without_input(self, record: BatchRecord) -> BatchRecord | None:
        """The input can't be read: the batch fails, and keeps the answers that it has."""
        problem = LineProblem(code=INPUT_LOST, message="The content of the input file isn't there.")
        if record.status == "validating":
            return replace(record, status="failed", problems=(problem,), ended_ms=self._now_ms())
        return None if record.status in ENDED else replace(record, problems=(problem,))

    async def _validate(self) -> None:
        problems: list[LineProblem] = []
        seen: set[str] = set()
        total = 0
        endpoint = self._record.endpoint
        try:
            async for place, data in input_lines(self._tools, self._record):
                total += 1
                if total > self._tools.most_lines:
                    message = f"The batch has more than {self._tools.most_lines} lines."
                    problems = [LineProblem(code="too_many_tasks", message=message)]
                    break
                try:
                    line = read_line(data, total - 1, endpoint)
                    check_unseen(line.custom_id, seen)
                except LineRefused as refused:
                    problems.append(refused.at_line(place))
                    if len(problems) >= MOST_PROBLEMS:
                        break
                if total % 64 == 0:
                    await asyncio.sleep(0)
            if not total:
                problems.append(LineProblem(code="empty_file", message="The input file has no lines."))
        except LineTooLong as error:
            problems.append(LineProblem(code="line_too_long", message=str(error), line=error.line))
        now_ms = self._now_ms()

        def validated(record: BatchRecord) -> BatchRecord | None:
            if record.status == "cancelling":
                return replace(record, total=total)
            if problems:
                return replace(record, status="failed", problems=tuple(problems), ended_ms=now_ms)
            return replace(record, status="in_progress", total=total, in_progress_ms=now_ms)

        await self._surely_change(validated)

    async def _run_lines(self) -> None:
        record, tools = self._record, self._tools
        self._done = bytearray(record.total)
        await try_until_done("results of a batch", self._read_done)
        number = -1
        async for _, data in input_lines(self._tools, self._record):
            number += 1
            if self._done[number]:
                continue
            line = read_line(data, number, record.endpoint)
            request = LineRequest(record.endpoint, line.model, line.body, self.batch, str(number))
            work = LineAtWork(tools.gateway, tools.slots, tools.metrics, self, request)
            if not await self._has_few_open() or not await work.wait_for_slot():
                break
            task = asyncio.create_task(self._run_line(work, line))
            self._working.add(task)
            task.add_done_callback(partial(self._ended, work))
        while self._working and self.goes_on:
            self._changed.clear()
            left_s = (record.expires_ms - self._now_ms()) / 1000
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._changed.wait()
            except TimeoutError:
                break
        await end_all(self._working)

    async def _has_few_open(self) -> bool:
        """Wait while too many lines wait until they begin again; False when the lines are given up first."""
        while len(self._working) >= MOST_OPEN and self.goes_on:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
        return self.goes_on

    async def _lend(self) -> str:
        """The token of the identity that lines have now."""
        record, now_ms = self._record, self._now_ms()
        urgent = is_batch_at_risk(
            done=self._completed + self._failed,
            total=record.total,
            begun_ms=record.in_progress_ms or now_ms,
            expires_ms=record.expires_ms,
            now_ms=now_ms,
        )
        async with self._lending:
            if urgent not in self._tokens:
                lending = self._tools.lending

                async def lend() -> None:
                    self._tokens[urgent] = await lending.lend_identity(
                        record.id, record.identity, record.expires_ms, urgent=urgent
                    )

                await try_until_done("identity of a batch", lend)
        return self._tokens[urgent]

    @property
    def goes_on(self) -> bool:
        """See `Leave.goes_on`."""
        return self._record.status == "in_progress" and self._now_ms() < self._record.expires_ms

    @property
    def is_held(self) -> bool:
        """See `Leave.is_held`."""
        return time.monotonic() - self._renewed <= LEASE_S

    async def _read_done(self) -> None:
        for number in await self._tools.results.list_lines(self.batch):
            self._done[number] = 1
        # Which of them failed is found out at the end; meanwhile the record has the last runner's figures.
        done = sum(self._done)
        self._failed = min(self._record.failed, done)
        self._completed = done - self._failed

    def _ended(self, work: LineAtWork, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        self._changed.set()
        work.give_back()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("line_failed", error, batch=self.batch)

    async def _run_line(self, work: LineAtWork, line: BatchLine) -> None:
        answer = await work.answer_line(self._lend)
        if answer is None:
            return
        if answer.status == 401 and KEY_REVOKED.encode() in answer.body:
            await self._surely_change(self._revoked)
        else:
            await self._keep(line, answer, work.tries)

    def _revoked(self, record: BatchRecord) -> BatchRecord | None:
        """The sender's key isn't valid any more: the batch is cancelled, and says why."""
        if record.status != "in_progress":
            return None
        problem = LineProblem(code=KEY_REVOKED, message=MESSAGES[KEY_REVOKED])
        return replace(record, status="cancelling", cancelling_ms=self._now_ms(), problems=(problem,))

    async def _keep(self, line: BatchLine, answer: DoorAnswer, tries: LineTries) -> None:
        if answer.status:
            result = LineResult(
                custom_id=line.custom_id,
                request_id=answer.request_id,
                status=answer.status,
                attempts=tries.attempt,
            )
        else:
            message = f"The gateway didn't answer: {answer.problem}."
            result = LineResult(custom_id=line.custom_id, error=NO_ANSWER, message=message, attempts=tries.attempt)

        async def write() -> None:
            await self._tools.results.write_once(self.batch, line.number, result, answer.body)

        await try_until_done("result of a line", write)
        if not self._done[line.number]:
            self._done[line.number] = 1
            if kind_of(result) == "completed":
                self._completed += 1
            else:
                self._failed += 1

    async def _finish(self) -> None:
        """Write the outputs. Each step can be repeated by another replica."""
        record = self._record
        code = record.problems[0].code if record.problems else CANCELLED if record.status == "cancelling" else EXPIRED
        output = BatchOutput(self._tools, self._record, self._now_ms)
        await try_until_done("results of a batch", lambda: output.mark_missing(code))
        now_ms = self._now_ms()

        def finalizing(record: BatchRecord) -> BatchRecord | None:
            if record.status != "in_progress":
                return None
            return replace(record, status="finalizing", finalizing_ms=now_ms)

        await self._surely_change(finalizing)
        written: list[WrittenOutput] = []

        async def write() -> None:
            written.append(await self._write_output(output))

        await try_until_done("output of a batch", write)
        self._tools.metrics.batches.labels(self._record.status).inc()
        # By now nothing but these results is repeated: without them, the output would be written empty.
        await try_until_done("results of an ended batch", lambda: self._tools.results.delete_results(self.batch))
        for each in written[0].apart:
            await try_until_done("answers of an ended batch", partial(self._tools.files.chunks.delete_chunks, each))

    async def _write_output(self, output: BatchOutput) -> WrittenOutput:
        try:
            written = await output.write_files()
        except ResultMissing as missing:
            # Where another replica has ended the batch, it has deleted the results, and this raises LeaseLost.
            await self._change(self._progress)
            _log.warning("result_missing", missing=str(missing))
            await output.mark_missing(RESULT_LOST)
            written = await output.write_files(bodies_lost=True)
        now_ms = self._now_ms()

        def ended(record: BatchRecord) -> BatchRecord | None:
            if record.status in ENDED:
                return None  # the answer to the change before was lost
            status = "completed"
            if record.status == "cancelling":
                status = "cancelled"
            elif record.problems:
                status = "failed"
            elif written.counts.expired:
                status = "expired"
            return replace(
                record,
                status=status,
                output_file=written.output_file,
                error_file=written.error_file,
                ended_ms=now_ms,
                **written.counts._asdict(),
            )

        await self._change(ended)
        return written
