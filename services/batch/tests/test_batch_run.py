"""One batch from its validation to its output, with lines that can't run."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from copy import copy
from typing import cast

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_batch.adapters.asker import Sender
from pointsman_batch.adapters.batches import Batches
from pointsman_batch.adapters.chunks import CHUNK_BYTES, BucketChunks
from pointsman_batch.adapters.files import Files
from pointsman_batch.adapters.results import LineResults
from pointsman_batch.batch_run import BatchRun, LeaseLost
from pointsman_batch.domain.asked import WantedPage
from pointsman_batch.domain.pace import Pace
from pointsman_batch.handlers import Handlers, TakenBounds
from pointsman_batch.metrics import BatchMetrics
from pointsman_batch.run_tools import RunTools
from pointsman_batch.runner import Runner
from pointsman_batch.slots import Slots
from pointsman_contracts.batch import ENDED, KEY_REVOKED, BatchRecord, StoredFile, make_batch_id
from pointsman_core.door_answer import DoorAnswer
from pointsman_core.refusal import Refusal
from pointsman_hosting.lending import Lending
from pointsman_hosting.own_door import OwnDoor
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_testing import eventually
from pointsman_testing.fake_bucket import FakeBucket

ENDPOINT = "/v1/chat/completions"
BATCH = make_batch_id("batch_", 1000, "abc")
REVOKED = b'{"error":{"code":"%b"}}' % KEY_REVOKED.encode()
Says = Callable[[int], DoorAnswer | None]
"""The answer to a line, given its number; None: none ever."""


class ScriptedGateway:
    """Answers lines as the test says."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.asked: Counter[int] = Counter()

    async def send_request(self, endpoint: str, body: bytes, token: str, request_id: str) -> DoorAnswer:
        del endpoint, body, token
        await asyncio.sleep(0)
        number = int(request_id.removeprefix(f"{BATCH}-").partition("-")[0])
        self.asked[number] += 1
        answer = self.says(number)
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return answer


class World:
    """The stores of a gateway, with one batch."""

    def __init__(self, lines: int, says: Says) -> None:
        self.lines = lines
        self.now_ms = 1000
        self.buckets = {name: FakeBucket() for name in ("records", "chunks", "batches", "results", "lent")}
        bucket = {name: cast("Bucket", each) for name, each in self.buckets.items()}
        chunks = BucketChunks(bucket["chunks"])
        self.batches = Batches(bucket["batches"], lambda seen: self.run.take_record(seen.record))
        self.gateway = ScriptedGateway(says)
        self.slots = Slots(Pace(64), lambda model: True)
        self.tools = RunTools(
            instance="batch-1",
            batches=self.batches,
            files=Files(bucket["records"], chunks),
            results=LineResults(bucket["results"], chunks),
            lending=Lending(bucket["lent"], -100, 0),
            gateway=cast("OwnDoor", self.gateway),
            slots=self.slots,
            metrics=BatchMetrics(CollectorRegistry(), lambda: 0, lambda: 0),
            line_max_bytes=1000,
            most_lines=10_000,
            keep_days=1.0,
        )
        self.record = BatchRecord(
            id=BATCH, api="openai", owner="", endpoint=ENDPOINT, input_file="file-in", created_ms=self.now_ms,
            expires_ms=self.now_ms + 60_000, runner="batch-1",
        )  # fmt: skip
        self.run = BatchRun(self.tools, self.record, lambda: self.now_ms)

    async def begin(self, first: bytes = b"") -> "asyncio.Task[None]":
        """Write the input, which begins with `first`, and run the batch."""
        writer = self.tools.files.begin_file("file-in")
        await writer.write(first)
        for number in range(self.lines):
            line = {"custom_id": f"{number}", "method": "POST", "url": ENDPOINT, "body": {"model": "m"}}
            await writer.write(json.dumps(line).encode() + b"\n")
        await writer.finish()
        await self.tools.files.add_file(
            StoredFile(
                id="file-in",
                owner="",
                filename="in",
                purpose="batch",
                bytes=writer.size,
                chunks=writer.count,
                created_ms=self.now_ms,
            )
        )
        await self.batches.add_batch(self.record)
        return asyncio.create_task(self.run.run())

    def now(self) -> BatchRecord:
        return self.batches.known[BATCH].record

    async def output(self) -> dict[str, str | int]:
        """Of each line, the status of its answer or the code of its error."""
        found: dict[str, str | int] = {}
        for file in (self.now().output_file, self.now().error_file):
            stored = None if file is None else await self.tools.files.find_file(file)
            if stored is not None:
                data = b"".join([piece async for piece in self.tools.files.read_file(stored)])
                for document in map(json.loads, data.splitlines()):
                    assert document["custom_id"] not in found
                    error, response = document["error"], document["response"]
                    found[document["custom_id"]] = error["code"] if error else response["status_code"]
        return found


def answered(number: int) -> DoorAnswer:
    return DoorAnswer(200, b"{}", f"r-{number}")


async def test_a_wrong_line_is_named_by_its_place_in_the_file_though_blank_lines_do_not_run() -> None:
    world = World(1, answered)
    await asyncio.wait_for(await world.begin(b"\n\r\nno JSON\n\n"), 20)
    over = world.now()
    assert over.status == "failed"
    assert [(each.code, each.line) for each in over.problems] == [("invalid_json_line", 3)]


async def test_lines_without_an_answer_expire_with_the_window_of_their_batch() -> None:
    world = World(10, lambda number: answered(number) if number < 3 else None)
    running = await world.begin()
    await eventually(lambda: len(world.buckets["results"].entries) == 3)
    assert world.now().status == "in_progress"
    world.now_ms = world.record.expires_ms
    await asyncio.wait_for(running, 20)
    over = world.now()
    assert (over.status, over.completed, over.failed, over.expired) == ("expired", 3, 0, 7)
    assert await world.output() == {f"{number}": 200 if number < 3 else "batch_expired" for number in range(10)}


async def test_a_batch_whose_key_is_revoked_is_cancelled_and_says_so() -> None:
    world = World(400, lambda number: answered(number) if number < 3 else DoorAnswer(401, REVOKED))
    await asyncio.wait_for(await world.begin(), 20)
    over = world.now()
    assert (over.status, over.completed, over.cancelled) == ("cancelled", 3, 397)
    assert [each.code for each in over.problems] == [KEY_REVOKED]
    assert await world.output() == {f"{number}": 200 if number < 3 else KEY_REVOKED for number in range(400)}
    assert sum(world.gateway.asked.values()) <= 3 + 64, "lines at work then, and no other"


async def test_lines_that_wait_for_a_limit_of_their_sender_are_few_and_take_no_pace_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman_batch.batch_run.MOST_OPEN", 8)
    world = World(100, lambda number: DoorAnswer(429, b"{}", retry_after_s=3600.0, limited=True))
    running = await world.begin()
    before = world.slots.pace.limit
    await eventually(lambda: len(world.gateway.asked) == 8)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(world.gateway.asked) == 8
    assert (world.slots.pace.limit, world.slots.pace.at_work) == (before, 0)
    running.cancel()
    await asyncio.wait([running])


async def test_a_quota_of_nothing_is_the_result_of_each_line() -> None:
    refusal = DoorAnswer(429, b'{"error":{"code":"insufficient_quota"}}', limited=True)
    world = World(3, lambda number: refusal)
    await asyncio.wait_for(await world.begin(), 20)
    assert (world.now().status in ENDED, world.now().failed) == (True, 3)


def lose_one_answer(world: World, name: str, method: str, of: Callable[[bytes], bool] | None = None) -> None:
    """The bucket does this once, of a value, and its answer is lost."""
    bucket = world.buckets[name]
    real = getattr(bucket, method)
    lost: list[str] = []

    async def losing(key: str, value: bytes = b"", *more: object) -> object:
        done = await (real(key, value, *more) if value else real(key))
        if not lost and (of is None or of(value)):
            lost.append(key)
            raise TimeoutError
        return done

    setattr(bucket, method, losing)


async def test_an_answer_that_is_lost_while_results_are_deleted_costs_no_output() -> None:
    world = World(5, answered)
    lose_one_answer(world, "results", "purge_keys")
    await asyncio.wait_for(await world.begin(), 20)
    assert (world.now().status, world.now().completed) == ("completed", 5)
    assert await world.output() == {f"{number}": 200 for number in range(5)}
    assert not world.buckets["results"].entries


async def test_a_cancelled_batch_stays_cancelled_though_the_answer_to_its_end_is_lost() -> None:
    world = World(5, lambda number: None)
    world.batches.follow()
    lose_one_answer(world, "batches", "replace", lambda value: b'"status":"cancelled"' in value)
    running = await world.begin()
    await eventually(lambda: world.gateway.asked)
    await world.batches.change_batch(BATCH, lambda record: replace(record, status="cancelling"))
    await asyncio.wait_for(running, 20)
    assert (world.now().status, world.now().cancelled) == ("cancelled", 5)


async def test_a_replica_that_was_stopped_while_it_wrote_the_output_spoils_nothing_of_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(3 * 32, answered)
    results = world.buckets["results"]
    read, goes_on = results.get, asyncio.Event()
    stopped: list[str] = []

    async def reads(key: str) -> object:
        if key.endswith(".40") and not stopped:
            stopped.append(key)
            await goes_on.wait()
        return await read(key)

    monkeypatch.setattr(results, "get", reads)
    running = await world.begin()
    await eventually(lambda: stopped)
    await world.batches.change_batch(BATCH, lambda record: replace(record, runner="batch-2"))
    successor = copy(world.tools)
    successor.instance = "batch-2"
    await asyncio.wait_for(BatchRun(successor, world.now(), lambda: world.now_ms).run(), 20)
    goes_on.set()
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(running, 20)
    assert (world.now().status, world.now().completed) == ("completed", 96)
    assert await world.output() == {f"{number}": 200 for number in range(96)}


async def test_a_result_that_the_store_lost_is_an_error_of_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(5, answered)
    results = world.buckets["results"]
    read = results.get
    lost: list[object] = []

    async def reads(key: str) -> object:
        if not lost:
            lost.append(results.entries.pop(f"{BATCH}.3"))
        return await read(key)

    monkeypatch.setattr(results, "get", reads)
    await asyncio.wait_for(await world.begin(), 20)
    assert (world.now().status, world.now().completed, world.now().failed) == ("completed", 4, 1)
    assert await world.output() == {**{f"{number}": 200 for number in range(5)}, "3": "result_lost"}


async def test_a_long_answer_that_the_store_lost_is_an_error_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_batch.adapters.results.AGAIN_S", 0.001)
    long = DoorAnswer(200, json.dumps({"text": "x" * CHUNK_BYTES}).encode())
    world = World(3, lambda number: long if number < 2 else None)
    running = await world.begin()
    chunks = world.buckets["chunks"].entries
    await eventually(lambda: len(world.buckets["results"].entries) == 2)
    lost = next(key for key in chunks if key.endswith(".1"))
    del chunks[lost]
    world.now_ms = world.record.expires_ms
    await asyncio.wait_for(running, 20)
    assert world.now().status == "expired"
    assert sorted(map(str, (await world.output()).values())) == ["200", "batch_expired", "result_lost"]


async def test_a_store_that_is_away_while_a_batch_reads_its_input_ends_no_line_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman_batch.adapters.files.AGAIN_S", 0.001)
    world = World(200, answered)
    chunks = world.buckets["chunks"]
    read, tries = chunks.get, Counter[str]()

    async def fails_at_first(key: str) -> object:
        tries[key] += 1
        if tries[key] < 4:
            raise OSError("the S3 store can't be reached: EndpointConnectionError")
        return await read(key)

    monkeypatch.setattr(chunks, "get", fails_at_first)
    await asyncio.wait_for(await world.begin(b"\n" * 2 * CHUNK_BYTES), 60)
    assert (world.now().status, world.now().completed) == ("completed", 200)
    assert set(world.gateway.asked.values()) == {1}


async def test_a_batch_whose_input_is_lost_keeps_the_answers_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(4, lambda number: answered(number) if number < 2 else None)
    running = await world.begin()
    await eventually(lambda: len(world.buckets["results"].entries) == 2)
    monkeypatch.setattr("pointsman_batch.adapters.files.AGAIN_S", 0.001)
    world.buckets["chunks"].entries.clear()
    world.now_ms = world.record.expires_ms
    await asyncio.wait_for(running, 20)
    over = world.now()
    assert (over.status, over.completed, over.failed) == ("failed", 2, 2)
    assert [each.code for each in over.problems] == ["file_not_found"]
    assert over.output_file is not None
    stored = await world.tools.files.find_file(over.output_file)
    assert stored is not None
    data = b"".join([piece async for piece in world.tools.files.read_file(stored)])
    assert [json.loads(each)["custom_id"] for each in data.splitlines()] == ["0", "1"]


async def test_a_file_that_a_batch_still_reads_outlives_its_own_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_batch.runner.JANITOR_S", 0.001)
    world = World(2, lambda number: None)
    running = await world.begin()
    await eventually(lambda: len(world.gateway.asked) == 2)
    file = await world.tools.files.find_file("file-in")
    assert file is not None
    await world.tools.files.add_file(replace(file, expires_ms=world.now_ms))
    await world.tools.files.add_file(replace(file, id="file-other", expires_ms=world.now_ms))
    deleting = asyncio.create_task(Runner(world.tools, 8, lambda: world.now_ms).run_deletion())
    await eventually(lambda: "file-other" not in world.buckets["records"].entries)
    assert world.buckets["chunks"].entries
    world.now_ms = world.record.expires_ms
    await asyncio.wait_for(running, 20)
    assert world.now().status == "expired"
    await eventually(lambda: "file-in" not in world.buckets["records"].entries)
    deleting.cancel()
    await asyncio.wait([deleting])


async def test_an_upload_whose_process_is_killed_is_seen_by_nobody_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman_batch.runner.JANITOR_S", 0.001)
    world = World(0, lambda number: None)
    bounds = TakenBounds(file_bytes=10 * CHUNK_BYTES, line_bytes=1000, lines=10, keep_days=1.0)
    handlers, sender = Handlers(world.tools.files, world.batches, bounds, lambda: world.now_ms), Sender({})
    world.tools.files.follow()
    chunks, records = world.buckets["chunks"], world.buckets["records"]

    async def body() -> AsyncIterator[bytes]:
        head = 'Content-Disposition: form-data; name="file"; filename="in.jsonl"'
        yield f"--edge\r\n{head}\r\n\r\n".encode()
        yield bytes(3 * CHUNK_BYTES)
        await asyncio.Event().wait()

    uploading = asyncio.create_task(handlers.upload_file(sender, "multipart/form-data; boundary=edge", body()))
    await eventually(lambda: len(chunks.entries) >= 2)
    assert handlers.list_files(sender, WantedPage(10, None), None, newest_first=True) == ([], False)
    [file] = records.entries
    with pytest.raises(Refusal) as refused:
        await handlers.find_file(sender, file)
    assert refused.value.status == 404
    # A process that is killed deletes nothing.
    records.broken = chunks.broken = True
    uploading.cancel()
    await asyncio.wait([uploading])
    records.broken = chunks.broken = False
    assert chunks.entries
    deleting = asyncio.create_task(Runner(world.tools, 8, lambda: world.now_ms).run_deletion())
    world.now_ms += 3 * 86_400_000
    await eventually(lambda: not chunks.entries and not records.entries)
    deleting.cancel()
    await asyncio.wait([deleting])
