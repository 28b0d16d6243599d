"""The two subscribers of docs/auditing.md: killed in the middle of 2,000 requests, given what no event should be, and
kept from their table."""

import asyncio
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import nats
import pytest

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import EVENT_SUBJECTS
from pointsman_runtime.jetstream.stores import EVENT_STREAM
from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.observer import observing
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.stack import StackFactory

ROOT = Path(__file__).resolve().parents[2]
REQUESTS: Final = 2000
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
            return self.count() >= events

        return kept

    async def reaches(self, events: int) -> None:
        """Wait until so many were kept, for as long as they become more."""
        while (kept := self.count()) < events:
            await eventually(self.has(kept + 1), timeout=60)

    def count(self) -> int:
        [(count,)] = self.rows("count(*)") or [(0,)]
        return int(str(count))

    @contextmanager
    def locked(self) -> Generator[None]:
        """Nobody else can write to what it keeps."""
        with closing(sqlite3.connect(self._file, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield

    def rows(self, columns: str) -> list[tuple[object, ...]]:
        if not self._file.exists():
            return []
        with sqlite3.connect(self._file) as db:
            try:
                return db.execute(f"SELECT {columns} FROM events ORDER BY seq").fetchall()  # noqa: S608 - of this file
            except sqlite3.OperationalError:
                return []  # the table isn't there yet


async def _send(door: str, results: list[int]) -> None:
    """So many requests, at most so many at a time, each again while its answer says to come again; every status."""
    body = {"model": "llama-3.1-8b", "prompt": "Once upon a time", "max_tokens": 1}
    left = iter(range(REQUESTS))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def client() -> None:
            for _ in left:
                status = 0
                while status != 200:
                    async with http.post(f"{door}/v1/completions", json=body) as answer:
                        await answer.read()
                    results.append(status := answer.status)
                    assert status in (200, 503), status

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
        assert statuses.count(200) == REQUESTS

        client = await nats.connect(stack.nats.url)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

        async def all_told() -> bool:
            """An end may be in the stream before the decision: a scheduler writes why after it has answered."""
            for kind in ("request.scheduled", "response.completed"):
                info = await js.stream_info("PM_EVENTS", subjects_filter=f"pm.evt.{kind}.>")
                if sum((info.state.subjects or {}).values()) != len(statuses):
                    return False
            return True

        await eventually(all_told)
        last = (await js.stream_info("PM_EVENTS")).state.last_seq
        await client.close()
        for audit in audits:
            await audit.reaches(last)
            _check(audit, last)


COMPLETED: Final = ResponseCompleted.address.type_id
GOOD: Final = ResponseCompleted(
    request_id="r", source="edge", sequence=1, at_ms=1, pool="p", status=200, outcome="ok"
).encode()  # fmt: skip
STRANGE: Final[tuple[tuple[str | None, bytes], ...]] = (
    (None, b"{}"),
    (COMPLETED, b"nonsense"),
    (COMPLETED, b"\xff"),
    (COMPLETED, b"[" * 100_000),
    ("response.completed.v999", GOOD),
)
"""Types and bodies that are no events of this version."""


async def test_unreadable_messages_are_kept_and_unwritten_ones_come_again(
    tmp_path: Path, processes: Processes, own_nats_server: NatsServer
) -> None:
    async with observing(own_nats_server.url) as seen:
        js = seen.js
        await js.add_stream(name=EVENT_STREAM, subjects=[EVENT_SUBJECTS])  # pyright: ignore[reportUnknownMemberType] - nats-py
        for kind, body in (*STRANGE, (COMPLETED, GOOD)):
            await js.publish("pm.evt.any", body, headers=None if kind is None else {"Pm-Type": kind})
        given = [(kind, body.decode(errors="backslashreplace")) for kind, body in (*STRANGE, (COMPLETED, GOOD))]
        faststream, plain = [Audit(example, tmp_path, own_nats_server.url, processes) for example in EXAMPLES]

        for audit, durable in ((faststream, "audit-faststream"), (plain, "audit-nats")):

            async def acknowledged(durable: str = durable) -> bool:
                floor = (await js.consumer_info(EVENT_STREAM, durable)).ack_floor
                return floor is not None and floor.stream_seq == len(given)

            await eventually(audit.has(len(given)))
            await eventually(acknowledged)
            assert audit.rows("type, body") == given
        assert plain.rows("valid") == [(0,)] * len(STRANGE) + [(1,)]

        with faststream.locked():
            await js.publish("pm.evt.any", GOOD, headers={"Pm-Type": COMPLETED})
            await eventually(lambda: "database is locked" in faststream.process.log_text())
        await eventually(faststream.has(len(given) + 1))


def _check(audit: Audit, last: int) -> None:
    assert [row[0] for row in audit.rows("seq")] == list(range(1, last + 1))
    scheduled: dict[str, str] = {}
    completed: dict[str, str | None] = {}
    sequences: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for kind, body in audit.rows("type, body"):
        if kind == RequestScheduled.address.type_id:
            event = RequestScheduled.decode(str(body))
            assert event.request_id not in scheduled
            # A busy machine may keep a load report for long enough to be told.
            assert event.level == ("degraded" if event.reasons else "full")
            scheduled[event.request_id] = event.level
        elif kind == ResponseCompleted.address.type_id:
            event = ResponseCompleted.decode(str(body))
            assert event.request_id not in completed
            completed[event.request_id] = event.level if event.status == 200 else None
        else:
            continue
        sequences[str(kind), event.source, event.pool].append(event.sequence)
    served = {request_id: level for request_id, level in completed.items() if level is not None}
    assert len(served) == REQUESTS
    assert {request_id: scheduled.get(request_id) for request_id in served} == served
    # Requests that were decided and not served were completed, too.
    assert scheduled.keys() <= completed.keys()
    for who, found in sequences.items():
        assert found == list(range(1, len(found) + 1)), who
