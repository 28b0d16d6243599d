"""The two subscribers of docs/auditing.md, killed in the middle of 5,000 requests."""

import asyncio
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp
import nats
import pytest

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_testing import Processes, eventually
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.stack import StackFactory

ROOT = Path(__file__).resolve().parents[2]
REQUESTS: Final = 5000
CONCURRENCY: Final = 32
EXAMPLES = ("audit_faststream", "audit_nats")

pytestmark = pytest.mark.timeout(400)


class Audit:
    """One of the examples as a process, and what it kept."""

    def __init__(self, example: str, folder: Path, nats_url: str, processes: Processes) -> None:
        self._command = [sys.executable, str(ROOT / "examples" / f"{example}.py")]
        self._file = folder / f"{example}.db"
        self._env = {"POINTSMAN_NATS_URL": nats_url, "AUDIT_DB": str(self._file)}
        self._processes = processes
        self.process: ServiceProcess
        self.start()

    def start(self) -> None:
        self.process = self._processes.start_command(self._command, env=self._env)

    def has(self, events: int) -> Callable[[], bool]:
        """A condition: so many were kept. Fails at once when the process ended by itself."""

        def kept() -> bool:
            if self.process.returncode is not None:
                raise RuntimeError(self.process.log_text()[-2000:])
            [(count,)] = self.rows("count(*)") or [(0,)]
            return int(str(count)) >= events

        return kept

    def rows(self, columns: str) -> list[tuple[object, ...]]:
        if not self._file.exists():
            return []
        with sqlite3.connect(self._file) as db:
            try:
                return db.execute(f"SELECT {columns} FROM events ORDER BY seq").fetchall()  # noqa: S608 - of this file
            except sqlite3.OperationalError:
                return []  # the table isn't there yet


async def _send(door: str, results: list[int]) -> None:
    """The requests, at most so many at a time; one status for each."""
    body = {"model": "llama-3.1-8b", "prompt": "Once upon a time", "max_tokens": 1}
    left = iter(range(REQUESTS))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def client() -> None:
            for _ in left:
                async with http.post(f"{door}/v1/completions", json=body) as answer:
                    await answer.read()
                    results.append(answer.status)

        await asyncio.gather(*(client() for _ in range(CONCURRENCY)))


async def test_a_killed_subscriber_finds_every_event_once_and_in_order(tmp_path: Path, processes: Processes) -> None:
    async with StackFactory(tmp_path, ROOT / "pointsman.yaml").start() as stack:
        audits = [Audit(example, tmp_path, stack.nats.url, processes) for example in EXAMPLES]
        statuses: list[int] = []
        traffic = asyncio.create_task(_send(stack.door, statuses))
        for audit in audits:
            await eventually(audit.has(REQUESTS // 10), timeout=120)
            audit.process.kill()
        await eventually(lambda: len(statuses) > REQUESTS // 2, timeout=120)
        for audit in audits:
            audit.start()
        await traffic
        assert statuses == [200] * REQUESTS

        client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

        async def all_completed() -> bool:
            info = await js.stream_info("PM_EVENTS", subjects_filter="pm.evt.response.completed.>")
            return sum((info.state.subjects or {}).values()) == REQUESTS

        await eventually(all_completed, timeout=30)
        last = (await js.stream_info("PM_EVENTS")).state.last_seq
        await client.close()
        for audit in audits:
            await eventually(audit.has(last), timeout=120)
            _check(audit, last)


def _check(audit: Audit, last: int) -> None:
    assert [row[0] for row in audit.rows("seq")] == list(range(1, last + 1))
    scheduled: list[str] = []
    completed: list[str] = []
    sequences: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for kind, body in audit.rows("type, body"):
        if kind == RequestScheduled.address.type_id:
            event = RequestScheduled.decode(str(body))
            scheduled.append(event.request_id)
        elif kind == ResponseCompleted.address.type_id:
            event = ResponseCompleted.decode(str(body))
            completed.append(event.request_id)
            assert (event.status, event.level, len(event.attempts)) == (200, "full", 1)
        else:
            continue
        sequences[str(kind), event.source, event.pool].append(event.sequence)
    assert len(set(scheduled)) == len(scheduled) == REQUESTS
    assert sorted(scheduled) == sorted(completed)
    for who, found in sequences.items():
        assert found == list(range(1, len(found) + 1)), who
