"""`pointsman batch`: what its commands do, by HTTP as any client."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from pointsman_cli.batch.progress import BatchProgress
from pointsman_cli.words import CommandError, moment

LOOK_S: Final = 1.0
_SAID_EVERY_S: Final = 10.0
"""How often a program or a log file gets a line."""
_SHOWN: Final = 20
_PIECE: Final = 65536
_FIRST_LINE: Final = 8 * 2**20
_AWAY_S: Final = 300.0
"""How long a gateway may be away while a batch is followed: the batch outlives it."""
_SERVER_ERROR: Final = 500
_UNAUTHORIZED: Final = 401
_NOTHING: Final[Mapping[str, Any]] = {}
_POLL: Final = aiohttp.ClientTimeout(total=10)


class Away(CommandError):
    """The gateway doesn't answer, or not yet."""


class BatchClient:
    """The API of a gateway. Raises CommandError for its errors, and Away while it can't answer."""

    def __init__(self, gateway: str, key: str | None, http: aiohttp.ClientSession) -> None:
        self._url: Final = f"{gateway.rstrip('/')}/v1"
        self._headers: Final = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http: Final = http

    async def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Send a request; its document."""
        try:
            async with self._http.request(method, f"{self._url}{path}", headers=self._headers, **body) as answer:
                document: dict[str, Any] = orjson.loads(await answer.read())
                _check(answer.status, document)
                return document
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _unreachable(self._url, error) from None

    async def download(self, file: str, to: Path) -> None:
        """Write the content of a file, as it comes."""
        try:
            async with self._http.get(f"{self._url}/files/{file}/content", headers=self._headers) as answer:
                if answer.status >= 400:
                    _check(answer.status, orjson.loads(await answer.read()))
                with to.open("wb") as out:
                    async for piece in answer.content.iter_chunked(_PIECE):
                        await asyncio.to_thread(out.write, piece)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(self._url, error) from None


async def run_file(
    *, gateway: str, key: str | None, file: Path, window: str, output: Path | None, console: Console
) -> bool:
    """Run a file as a batch; whether each line has an answer. Raises CommandError."""
    endpoint = await asyncio.to_thread(_endpoint_of, file)
    answers = output or file.with_suffix(".output.jsonl")
    errors = answers.with_name(f"{answers.stem.removesuffix('.output')}.errors.jsonl")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)) as http:
        client = BatchClient(gateway, key, http)
        with file.open("rb") as content:
            form = aiohttp.FormData({"purpose": "batch"})
            form.add_field("file", content, filename=file.name, content_type="application/jsonl")
            stored = await client.call("POST", "/files", data=form)
        wanted = {"input_file_id": stored["id"], "endpoint": endpoint, "completion_window": window}
        batch = await client.call("POST", "/batches", json=wanted)
        console.print(f"batch {batch['id']}", soft_wrap=True)
        try:
            batch = await _followed(client, batch, console)
        except (asyncio.CancelledError, Away):
            console.print(f"The batch goes on: pointsman batch status {batch['id']}", soft_wrap=True)
            raise
        progress = BatchProgress.of(batch, time.time())
        _print_problems(batch, console)
        for found, to in ((batch["output_file_id"], answers), (batch["error_file_id"], errors)):
            if found is not None:
                await client.download(found, to)
                console.print(f"{to}", soft_wrap=True)
        console.print(progress.words, soft_wrap=True)
        return progress.status == "completed" and not progress.failed


async def show_status(gateway: str, key: str | None, batch: str | None, console: Console) -> None:
    """Print a batch, or the newest ones. Raises CommandError."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        client = BatchClient(gateway, key, http)
        if batch is not None:
            found = [await client.call("GET", f"/batches/{batch}")]
        else:
            found = (await client.call("GET", "/batches", params={"limit": str(_SHOWN)}))["data"]
    if not found:
        console.print("No batch.")
        return
    table = Table("batch", "made", "progress", box=None, pad_edge=False)
    for each in found:
        made = moment(each["created_at"] * 1000)
        table.add_row(each["id"], made, BatchProgress.of(each, time.time()).words)
    console.print(table)
    if batch is not None:
        for what, file in (("answers", found[0]["output_file_id"]), ("errors", found[0]["error_file_id"])):
            if file is not None:
                console.print(f"{what}: {gateway.rstrip('/')}/v1/files/{file}/content", soft_wrap=True)
        _print_problems(found[0], console)


def _print_problems(batch: Mapping[str, Any], console: Console) -> None:
    refused: Mapping[str, Any] = batch.get("errors") or _NOTHING
    for problem in refused.get("data", ()):
        where = "" if problem["line"] is None else f"line {problem['line']}: "
        console.print(f"{where}{problem['message']}", soft_wrap=True)


async def _followed(client: BatchClient, batch: dict[str, Any], console: Console) -> dict[str, Any]:
    """The batch once it has ended."""
    bar = _bar(console) if console.is_terminal else None
    task: TaskID | None = None
    said_at = 0.0
    away_since: float | None = None
    with bar or nullcontext():
        while True:
            progress = BatchProgress.of(batch, time.time())
            if progress.ended:
                return batch
            status = progress.status if away_since is None else "the gateway doesn't answer"
            if bar is not None:
                if task is None:
                    task = bar.add_task(status, total=None)
                bar.update(task, description=status, completed=progress.done, total=progress.total or None)
            elif time.monotonic() - said_at >= _SAID_EVERY_S:
                said_at = time.monotonic()
                console.print(progress.words if away_since is None else status, soft_wrap=True)
            await asyncio.sleep(LOOK_S)
            try:
                batch = await client.call("GET", f"/batches/{batch['id']}", timeout=_POLL)
            except Away:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _AWAY_S:
                    raise
            else:
                away_since = None


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def _endpoint_of(file: Path) -> str:
    """The `url` of the first line, which all lines must have."""
    with file.open("rb") as content:
        first = content.readline(_FIRST_LINE)
    try:
        url = orjson.loads(first)["url"]
    except (ValueError, KeyError, TypeError):
        url = None
    if not isinstance(url, str):
        raise CommandError(
            f"{file}: the first line isn't a request of a batch.",
            'Write {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}} on each line.',
        )
    return url


def _check(status: int, document: Mapping[str, Any]) -> None:
    if status >= 400:
        error: Mapping[str, Any] = document.get("error") or _NOTHING
        problem = f"the gateway answered {status}: {error.get('message', 'no reason given')}"
        if status >= _SERVER_ERROR:
            raise Away(problem)
        advice = "Name the variable that has the key: --key env:NAME." if status == _UNAUTHORIZED else ""
        raise CommandError(problem, advice)


def _unreachable(url: str, error: Exception) -> Away:
    return Away(f"{url} doesn't answer: {type(error).__name__}.", "Name the gateway with --gateway URL.")
