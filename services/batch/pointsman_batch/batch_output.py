"""Writes the outputs of a batch. Each step can be repeated, also by another replica at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from pointsman_batch.adapters.files import ContentLost, FileWriter
from pointsman_batch.domain.lines import LineRefused, LineSplitter, read_line
from pointsman_batch.domain.outputs import INPUT_LOST, MESSAGES, RESULT_LOST, OutputLine, anthropic_line, openai_line
from pointsman_batch.run_tools import RunTools
from pointsman_contracts.batch import BatchRecord, LineResult, StoredFile

_READ_AHEAD: Final = 32
"""LineResults that are read at once."""
_MARKS_AT_ONCE: Final = 32
"""LineResults that are written at once."""
_DAY_MS: Final = 86_400_000


class ResultMissing(Exception):
    """A line has no result any more."""


class LineCounts(NamedTuple):
    """Lines of an output by what became of them."""

    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0


class WrittenOutput(NamedTuple):
    """The files of a batch."""

    output_file: str | None
    error_file: str | None
    counts: LineCounts
    apart: list[str]
    """Files of long answers, which are no longer needed."""


async def input_lines(tools: RunTools, batch: BatchRecord) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a batch's input file that aren't blank, each with its place in the file, counted from 1. Raises
    ContentLost and LineTooLong."""
    record = await tools.files.find_file(batch.input_file)
    if record is None:
        raise ContentLost(batch.input_file)
    splitter = LineSplitter(tools.line_max_bytes)
    place = 0
    async for data in tools.files.read_file(record, patient=True):
        for line in splitter.split_bytes(data):
            place += 1
            if line.strip():
                yield place, line
    last = splitter.rest()
    if last.strip():
        yield place + 1, last


class BatchOutput:
    """The output of one batch."""

    def __init__(self, tools: RunTools, batch: BatchRecord, now_ms: Callable[[], int]) -> None:
        self._tools: Final = tools
        self._batch: Final = batch
        self._now_ms: Final = now_ms

    async def mark_missing(self, code: str) -> None:
        """Give each line without a result one that says why: from then on, no answer can become its result. Raises
        ContentLost, unless the code says that something is lost: then lines that can't be read have no `custom_id`."""
        record = self._batch
        if not record.total:
            return
        done = set(await self._tools.results.list_lines(record.id))
        missing = [number for number in range(record.total) if number not in done]
        if not missing:
            return
        pending: set[asyncio.Task[bool]] = set()
        async for number, custom_id in self._names(missing, surely=code in (INPUT_LOST, RESULT_LOST)):
            result = LineResult(custom_id=custom_id, error=code, message=MESSAGES[code])
            pending.add(asyncio.create_task(self._tools.results.write_once(record.id, number, result)))
            if len(pending) >= _MARKS_AT_ONCE:
                done_now, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done_now:
                    task.result()
        await asyncio.gather(*pending)

    async def _names(self, numbers: list[int], *, surely: bool) -> AsyncIterator[tuple[int, str]]:
        """These lines, each with its `custom_id`. Raises ContentLost unless `surely`."""
        record = self._batch
        left = dict.fromkeys(numbers)
        number = -1
        try:
            async for _, data in input_lines(self._tools, record):
                number += 1
                if number in left:
                    with suppress(LineRefused):
                        custom_id = read_line(data, number, record.endpoint).custom_id
                        del left[number]
                        yield number, custom_id
        except ContentLost:
            if not surely:
                raise
        for unread in left:
            yield unread, ""

    async def write_files(self, *, bodies_lost: bool = False) -> WrittenOutput:
        """Write the files from the results of all lines. Raises ResultMissing before anything is written of a line
        without a result, or of those after it: where another replica has ended the batch, its files stay.
        `bodies_lost`: an answer whose body isn't there is an error of its line."""
        record, tools = self._batch, self._tools
        # The ids don't depend on the writer: a replica that repeats this replaces the same content.
        prefix, _, rest = record.id.partition("_")
        stem = f"file-{prefix.removesuffix('batch')}{rest}"
        output = tools.files.begin_file(f"{stem}o")
        errors = output if record.api == "anthropic" else tools.files.begin_file(f"{stem}e")
        counts: Counter[str] = Counter()
        apart: list[str] = []
        for begin in range(0, record.total, _READ_AHEAD):
            numbers = range(begin, min(begin + _READ_AHEAD, record.total))
            found = await asyncio.gather(*(tools.results.read_result(record.id, number) for number in numbers))
            for number, each in zip(numbers, found, strict=True):
                if each is None:
                    raise ResultMissing(f"line {number} of {record.id}")
                result, body = each
                if result.apart:
                    apart.append(result.apart)
                if body is None:
                    if not bodies_lost:
                        raise ResultMissing(f"answer to line {number} of {record.id}")
                    result, body = _lost(result), b""
                line = self._output_line(number, result, body)
                counts[line.kind] += 1
                await (output if line.kind == "completed" else errors).write(line.text)
        now_ms = self._now_ms()
        output_file = await self._add(record, output, now_ms, "output")
        error_file = None if errors is output else await self._add(record, errors, now_ms, "error")
        return WrittenOutput(output_file, error_file, LineCounts(**counts), apart)

    def _output_line(self, number: int, result: LineResult, body: bytes) -> OutputLine:
        if self._batch.api == "anthropic":
            return anthropic_line(result, body)
        return openai_line(self._batch.id, number, result, body)

    async def _add(self, record: BatchRecord, writer: FileWriter, now_ms: int, kind: str) -> str | None:
        await writer.finish()
        if not writer.size:
            return None
        lasts_ms = None if record.output_expires_s is None else record.output_expires_s * 1000
        await self._tools.files.add_file(
            StoredFile(
                id=writer.file,
                owner=record.owner,
                filename=f"{record.id}_{kind}.jsonl",
                purpose="batch_output",
                bytes=writer.size,
                chunks=writer.count,
                created_ms=now_ms,
                expires_ms=now_ms + (lasts_ms or round(self._tools.keep_days * _DAY_MS)),
            )
        )
        return writer.file


def _lost(result: LineResult) -> LineResult:
    return LineResult(custom_id=result.custom_id, error=RESULT_LOST, message=MESSAGES[RESULT_LOST])
