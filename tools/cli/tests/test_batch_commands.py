"""`pointsman batch`: what it prints of a batch, and a gateway that is away while a batch is followed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from pointsman_cli.batch import batch_commands
from pointsman_cli.batch.progress import BatchProgress
from pointsman_cli.words import CommandError

RUNNING: dict[str, Any] = {
    "id": "batch_1", "status": "in_progress", "in_progress_at": 0, "created_at": 0, "output_file_id": None,
    "error_file_id": None, "request_counts": {"total": 2, "completed": 1, "failed": 0},
}  # fmt: skip
ENDED = RUNNING | {
    "status": "completed", "output_file_id": "file-1", "request_counts": {"total": 2, "completed": 2, "failed": 0}
}  # fmt: skip


class Gateway:
    """Has one batch, which ends after `looks` questions; `away`: what it answers until then."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.looks = 3
        self.asked = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return web.json_response({"id": "file-0"} if request.path.endswith("files") else RUNNING)
        if request.path.endswith("content"):
            return web.Response(text="{}\n")
        self.asked += 1
        if self.asked < self.looks:
            return web.json_response({"error": {"message": "starting"}}, status=self.away)
        return web.json_response(ENDED)


async def run(gateway: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch, after_s: float = 60.0) -> str:
    monkeypatch.setattr(batch_commands, "LOOK_S", 0.001)
    monkeypatch.setattr(batch_commands, "_AWAY_S", after_s)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", gateway.answer)
    requests = folder / "night.jsonl"
    requests.write_text('{"url": "/v1/chat/completions"}\n')
    console = Console(width=200)
    async with TestServer(app) as server:
        with console.capture() as shown:
            try:
                await batch_commands.run_file(
                    gateway=str(server.make_url("")),
                    key=None,
                    file=requests,
                    window="24h",
                    output=None,
                    console=console,
                )
            except (CommandError, asyncio.CancelledError) as error:
                console.print(repr(error))
    return shown.get()


async def test_a_gateway_that_is_away_for_a_while_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(away=503)
    text = await run(gateway, tmp_path, monkeypatch)
    assert "completed: 2 of 2 lines" in text
    assert gateway.asked == 3
    assert (tmp_path / "night.output.jsonl").read_text() == "{}\n"


async def test_a_gateway_that_stays_away_ends_the_run_and_names_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(away=503)
    gateway.looks = 10**9
    text = await run(gateway, tmp_path, monkeypatch, after_s=0.0)
    assert "pointsman batch status batch_1" in text
    assert "503: starting" in text


async def test_a_key_that_is_refused_ends_the_run_at_once_and_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(away=401)
    text = await run(gateway, tmp_path, monkeypatch)
    assert gateway.asked == 1
    assert "401: starting" in text


def test_a_file_that_is_checked_or_refused_has_no_lines_yet() -> None:
    counts = {"total": 0, "completed": 0, "failed": 0}
    assert BatchProgress.of({"status": "failed", "request_counts": counts}, 0.0).words == "failed: no line has run"
    assert BatchProgress.of(RUNNING, 1.0).words == "in_progress: 1 of 2 lines, about 0:00:01 left"
