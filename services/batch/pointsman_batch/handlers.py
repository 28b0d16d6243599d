"""The clients' operations on files and batches."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from pointsman_batch.adapters.asker import Sender
from pointsman_batch.adapters.batches import Batches
from pointsman_batch.adapters.files import Files, FileWriter
from pointsman_batch.adapters.uploads import read_upload
from pointsman_batch.domain.asked import WantedBatch, WantedPage, read_expiry
from pointsman_batch.domain.lines import LineRefused, check_unseen
from pointsman_batch.domain.message_requests import ENDPOINT, line_of
from pointsman_batch.domain.request_array import ArrayRefused, RequestArray
from pointsman_contracts.batch import ENDED, BatchRecord, StoredFile, make_batch_id
from pointsman_core.refusal import Refusal

T = TypeVar("T", StoredFile, BatchRecord)

OPENAI: Final = "batch_"
ANTHROPIC: Final = "msgbatch_"
_PURPOSE: Final = "batch"
_DAY_MS: Final = 86_400_000
_UPLOAD_S: Final = 86_400
"""The longest that an upload may take."""
_LEFT_MS: Final = 120_000
"""So long after its failure no chunk of an upload is on its way any more."""
_HIDDEN: Final = "file-msg"
"""Begins the ids of files with the requests and results of Anthropic's API, which has no files."""


class TakenBounds(NamedTuple):
    """Limits of what is taken."""

    file_bytes: int
    line_bytes: int
    lines: int
    keep_days: float


class Handlers:
    """Operations on files and batches. Each raises Refusal, and nats errors, OSError and TimeoutError when the stores
    can't be reached."""

    def __init__(self, files: Files, batches: Batches, bounds: TakenBounds, now_ms: Callable[[], int]) -> None:
        self._files: Final = files
        self._batches: Final = batches
        self._bounds: Final = bounds
        self._now_ms: Final = now_ms

    async def upload_file(self, sender: Sender, content_type: str, body: AsyncIterator[bytes]) -> StoredFile:
        """Keep a file."""
        async with self._writing(sender) as writer:
            form = await read_upload(content_type, body, writer, self._bounds.file_bytes)
            _check_purpose(form.fields.get("purpose"))
            given = {
                name: form.fields[key]
                for name in ("anchor", "seconds")
                if (key := f"expires_after[{name}]") in form.fields
            }
            expires_s = read_expiry(given or None, "expires_after")
            record = self._record(sender, writer, form.filename or "", expires_s)
            await self._files.add_file(record)
        return record

    async def find_file(self, sender: Sender, file: str) -> StoredFile:
        found = await self._files.find_file(file)
        if found is None or found.owner != sender.owner or _is_over(found.expires_ms, self._now_ms()):
            raise Refusal(404, "No such File object.", code="not_found", param="id")
        return found

    def list_files(
        self, sender: Sender, page: WantedPage, purpose: str | None, *, newest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        """A page of the sender's files, and whether there are more."""
        now_ms = self._now_ms()
        found = [
            each
            for each in self._files.list_files()
            if each.owner == sender.owner
            and each.complete
            and not each.id.startswith(_HIDDEN)
            and purpose in (None, each.purpose)
            and not _is_over(each.expires_ms, now_ms)
        ]
        return _page(found if newest_first else found[::-1], page)

    def read_file(self, file: StoredFile) -> AsyncIterator[bytes]:
        """The content of a file."""
        return self._files.read_file(file)

    async def delete_file(self, sender: Sender, file: str) -> None:
        """Delete a file of this sender. A batch that reads it must have ended."""
        found = await self.find_file(sender, file)
        for batch in self._batches.list_batches():
            if batch.input_file == found.id and batch.status not in ENDED:
                raise Refusal(
                    409, "A batch that hasn't ended reads this file; cancel the batch first.", code="file_in_use"
                )
        await self._files.delete_file(found.id)

    async def create_batch(self, sender: Sender, wanted: WantedBatch) -> BatchRecord:
        """Make a batch of OpenAI's API."""
        file = await self._files.find_file(wanted.input_file)
        if file is None or file.owner != sender.owner or _is_over(file.expires_ms, self._now_ms()):
            raise Refusal(400, "There is no file with this id.", code="file_not_found", param="input_file_id")
        if file.purpose != _PURPOSE:
            # llm-d/llm-d-batch-gateway #152
            raise Refusal(
                400, f"The file's purpose must be {_PURPOSE}.", code="invalid_file_purpose", param="input_file_id"
            )
        now_ms = self._now_ms()
        record = BatchRecord(
            id=make_batch_id(OPENAI, now_ms, secrets.token_hex(6)),
            api="openai",
            owner=sender.owner,
            identity=sender.identity,
            endpoint=wanted.endpoint,
            input_file=file.id,
            window=wanted.window,
            metadata=wanted.metadata,
            created_ms=now_ms,
            expires_ms=now_ms + round(wanted.window_s * 1000),
            output_expires_s=wanted.output_expires_s,
        )
        await self._batches.add_batch(record)
        return record

    async def create_message_batch(self, sender: Sender, body: AsyncIterator[bytes]) -> BatchRecord:
        """Make a batch of Anthropic's API."""
        now_ms = self._now_ms()
        batch = make_batch_id(ANTHROPIC, now_ms, secrets.token_hex(6))
        async with self._writing(sender, f"{_HIDDEN}{batch.removeprefix(ANTHROPIC)}") as writer:
            number = await self._write_requests(body, writer)
            await self._files.add_file(self._record(sender, writer, f"{batch}.jsonl"))
            record = BatchRecord(
                id=batch,
                api="anthropic",
                owner=sender.owner,
                identity=sender.identity,
                endpoint=ENDPOINT,
                input_file=writer.file,
                created_ms=now_ms,
                expires_ms=now_ms + _DAY_MS,
                total=number,
            )
            await self._batches.add_batch(record)
        return record

    @asynccontextmanager
    async def _writing(self, sender: Sender, file: str | None = None) -> AsyncGenerator[FileWriter]:
        """A writer of a new file. Clients see the file once its complete record is added. Raises TimeoutError after a
        day."""
        writer = self._files.begin_file(file)
        # A process that is killed leaves chunks: they are deleted when this record expires.
        begun = replace(self._record(sender, writer, "", 2 * _UPLOAD_S), complete=False)
        try:
            await self._files.add_file(begun)
            async with asyncio.timeout(_UPLOAD_S):
                yield writer
        except OSError:  # the client doesn't wait until the store can delete
            await self._files.add_file(replace(begun, expires_ms=self._now_ms() + _LEFT_MS))
            raise
        except BaseException:  # also if the client leaves: its pieces must not stay
            await self._files.give_up(writer)
            raise

    async def _write_requests(self, body: AsyncIterator[bytes], writer: FileWriter) -> int:
        """Write the requests of a message batch as lines; how many there are. Raises Refusal."""
        array = RequestArray(self._bounds.line_bytes)
        seen: set[str] = set()
        size = number = 0
        try:
            async for data in body:
                size += len(data)
                if size > self._bounds.file_bytes:
                    raise Refusal(413, f"The batch has more than {self._bounds.file_bytes} bytes.")
                for element in array.split_bytes(data):
                    custom_id, line = line_of(element)
                    check_unseen(custom_id, seen)
                    number += 1
                    if number > self._bounds.lines:
                        raise Refusal(400, f"requests: at most {self._bounds.lines} are taken.")
                    await writer.write(line)
            array.check_end()
        except LineRefused as refused:
            raise Refusal(400, f"requests.{number}.{refused}") from None
        except ArrayRefused as refused:
            raise Refusal(400, str(refused)) from None
        if not number:
            raise Refusal(400, "requests: at least one is required.")
        await writer.finish()
        return number

    async def find_batch(self, sender: Sender, batch: str, api: str) -> BatchRecord:
        found = await self._batches.find_batch(batch)
        if found is None or found.owner != sender.owner or found.api != api:
            raise Refusal(404, "There is no batch with this id.", code="not_found")
        return found

    def list_batches(self, sender: Sender, api: str, page: WantedPage) -> tuple[list[BatchRecord], bool]:
        """A page of the sender's batches, the newest first, and whether there are more."""
        return _page(
            [each for each in self._batches.list_batches() if each.owner == sender.owner and each.api == api], page
        )

    async def cancel_batch(self, sender: Sender, batch: str, api: str) -> BatchRecord:
        await self.find_batch(sender, batch, api)
        now_ms = self._now_ms()

        def cancelled(record: BatchRecord) -> BatchRecord | None:
            if record.status in ENDED or record.status == "cancelling":
                return None
            return replace(record, status="cancelling", cancelling_ms=now_ms)

        changed = await self._batches.change_batch(batch, cancelled)
        if changed is None:
            raise Refusal(404, "There is no batch with this id.", code="not_found")
        if changed.status in ENDED and changed.status != "cancelled" and api == "openai":
            raise Refusal(409, f"The batch has ended: it is {changed.status}.", code="batch_ended")
        return changed

    async def delete_message_batch(self, sender: Sender, batch: str) -> None:
        """Delete an ended batch of Anthropic's API, and its results."""
        found = await self.find_batch(sender, batch, "anthropic")
        if found.status not in ENDED:
            raise Refusal(400, "The batch must have ended before it is deleted; cancel it first.")
        await self._batches.delete_batch(batch)
        for file in (found.input_file, found.output_file):
            if file is not None:
                await self._files.delete_file(file)

    async def read_results(self, sender: Sender, batch: str) -> AsyncIterator[bytes]:
        """The results of a batch of Anthropic's API."""
        found = await self.find_batch(sender, batch, "anthropic")
        if found.status not in ENDED:
            raise Refusal(404, "The batch has no results yet.", code="not_found")
        file = None if found.output_file is None else await self._files.find_file(found.output_file)
        return _nothing() if file is None else self._files.read_file(file)

    def _record(self, sender: Sender, writer: FileWriter, filename: str, expires_s: int | None = None) -> StoredFile:
        now_ms = self._now_ms()
        lasts_ms = round(self._bounds.keep_days * _DAY_MS) if expires_s is None else expires_s * 1000
        return StoredFile(
            id=writer.file,
            owner=sender.owner,
            filename=filename,
            purpose=_PURPOSE,
            bytes=writer.size,
            chunks=writer.count,
            created_ms=now_ms,
            expires_ms=now_ms + lasts_ms,
        )


def _check_purpose(purpose: str | None) -> None:
    if purpose != _PURPOSE:
        raise Refusal(400, f"purpose must be {_PURPOSE}.", code="invalid_value", param="purpose")


async def _nothing() -> AsyncIterator[bytes]:
    for piece in ():
        yield piece


def _page(found: Sequence[T], page: WantedPage) -> tuple[list[T], bool]:
    ids = [each.id for each in found]
    if page.after is not None:
        found = found[ids.index(page.after) + 1 :] if page.after in ids else ()
    elif page.before is not None:
        found = found[: ids.index(page.before)] if page.before in ids else ()
        return [*found[-page.limit :]], len(found) > page.limit
    return [*found[: page.limit]], len(found) > page.limit


def _is_over(expires_ms: int | None, now_ms: int) -> bool:
    return expires_ms is not None and expires_ms <= now_ms
