"""Every event once, every request charged once, whatever comes again and wherever the process ends."""

import asyncio
import shutil
import tempfile
import zlib
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pointsman_contracts.identity import Identity
from pointsman_contracts.message import read_fields
from pointsman_contracts.regret import RegretSum
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSum
from pointsman_recorder.adapters.database import FILE, Database
from pointsman_recorder.adapters.event_table import ReadPlace
from pointsman_recorder.adapters.event_text import packed, unpacked
from pointsman_recorder.adapters.keys import earlier_key_of, key_of, time_of
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.domain.entry import RecordedEvent, entry

T = TypeVar("T")
LONG = StoreBounds(event_days=1e4, event_bytes=2**30, sum_days=2e4)
DAY_MS = 86_400_000


def run(work: Coroutine[object, object, T]) -> T:
    return asyncio.run(work)


def event(
    number: int, *, tenant: str = "acme", tokens: int = 10, day: int = 20_000, request: str = ""
) -> RecordedEvent:
    completed = ResponseCompleted(
        request_id=request or f"r-{number}",
        source="edge",
        sequence=number,
        at_ms=day * DAY_MS,
        pool="p",
        status=200,
        outcome="ok",
        usage=Usage(prompt_tokens=tokens, completion_tokens=1),
        identity=Identity(tenant=tenant),
        served="llama",
        cost_nanos=tokens * 250_000_000,
    )
    found = entry(ResponseCompleted.address.type_id, f"e:{number}", completed.encode(), lambda: 0)
    assert found is not None
    return found


def test_a_story_is_found_by_its_trace_for_as_long_as_events_are_kept(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sampled = msgspec.structs.replace(event(1, request="r-1"), trace=trace)
    run(store.keep_events([sampled, sampled, event(3, request="r-3")]))
    events, more = run(store.story_of_trace(trace))
    assert ([ResponseCompleted.decode(each.body).request_id for each in events], more) == (["r-1"], False)
    assert run(store.story_of_trace("0" * 32)) == ([], False)
    run(store.close())
    # Nothing is remembered of a trace for longer than its events.
    again = EventStore(Database(tmp_path), LONG._replace(event_days=1.0))
    run(again.delete_expired(1.0))
    assert run(again.story_of_trace(trace)) == ([], False)
    run(again.close())


class Recorder(RuleBasedStateMachine):
    """The recorder's steps in every order, with an end of the process between any two."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.published: list[RecordedEvent] = []
        self.acknowledged = 0
        self.ledger: list[bytes] = []
        self.unwritten: list[bytes] = []
        self.caught_up = False
        self.store = EventStore(Database(self.folder), LONG)

    @rule(
        tokens=st.integers(min_value=0, max_value=50),
        tenant=st.sampled_from(["acme", "", "other"]),
        day=st.sampled_from([-1, 19_999, 20_000, 20_001, 2**35]),
    )
    def publish(self, tokens: int, tenant: str, day: int) -> None:
        """An edge ends a request; edges' clocks differ."""
        self.published.append(event(len(self.published), tenant=tenant, tokens=tokens, day=day))

    @rule(many=st.integers(min_value=1, max_value=5), back=st.integers(min_value=0, max_value=4))
    @precondition(lambda self: self.caught_up)
    def keep(self, many: int, back: int) -> None:
        """Events come, some of them again."""
        start = max(0, self.acknowledged - back)
        kept = run(self.store.keep_events(self.published[start : start + many]))
        self.unwritten = [*self.unwritten, *(each.message for each in kept.owed)]
        if not self.unwritten:
            self.acknowledged = min(len(self.published), max(self.acknowledged, start + many))

    @rule(many=st.integers(min_value=1, max_value=3))
    def write(self, many: int) -> None:
        """The ledger gets some of what it is owed."""
        self.ledger += self.unwritten[:many]
        self.unwritten = self.unwritten[many:]

    @rule()
    @precondition(lambda self: self.caught_up)
    def write_again(self) -> None:
        """The work begins anew: the ledger gets what wasn't read there yet, whether it has it or not."""
        self.unwritten = [each.message for each in run(self.store.list_owed("", 100))]

    @rule(many=st.integers(min_value=1, max_value=100))
    def read(self, many: int) -> None:
        """The ledger is read on from where it was left."""
        _, done = run(self.store.read_progress())
        page = [UsageRecord.decode(record) for record in self.ledger[done : done + many]]
        run(self.store.count_records("ledger", page, done + len(page)))
        self.caught_up = self.caught_up or done + len(page) == len(self.ledger)

    @rule(lost=st.booleans())
    def end(self, lost: bool) -> None:
        """The process ends and begins again; it may find nothing of what it kept."""
        run(self.store.close())
        if lost:
            shutil.rmtree(self.folder)
            self.acknowledged = 0
        self.store = EventStore(Database(self.folder), LONG)
        self.unwritten = []
        self.caught_up = False

    @invariant()
    def sums_are_those_of_the_ledger(self) -> None:
        _, done = run(self.store.read_progress())
        read = {record.key: record for record in map(UsageRecord.decode, self.ledger[:done])}
        rows, *_ = run(self.store.sum_usage(UsageQuery(by=())))
        found = rows[0] if rows else UsageSum()
        assert found.requests == len(read)
        assert found.prompt_tokens == sum(record.usage.prompt_tokens for record in read.values())

    def teardown(self) -> None:
        """In the end everything comes to rest: each request is charged once."""
        self.read(100_000)
        run(self.store.keep_events(self.published))
        self.ledger += [each.message for each in run(self.store.list_owed("", 10_000))]
        self.read(100_000)
        assert run(self.store.list_owed("", 10_000)) == []
        rows, *_ = run(self.store.sum_usage(UsageQuery(by=("tenant",))))
        for tenant in ("acme", "", "other"):
            own = [UsageRecord.decode(owed.message) for one in self.published for owed in one.owed]
            tokens = [one.usage.prompt_tokens for one in own if one.identity.tenant == tenant]
            found = next((row for row in rows if row.tenant == tenant), UsageSum())
            assert (found.requests, found.prompt_tokens) == (len(tokens), sum(tokens))
            assert found.cost_nanos == sum(tokens) * 250_000_000
        for one in self.published:
            events, _ = run(self.store.read_story(one.request_id or ""))
            assert [kept.body.encode() for kept in events] == [one.body]
        run(self.store.close())
        shutil.rmtree(self.folder)


TestRecorder = Recorder.TestCase
TestRecorder.settings = settings(max_examples=12, stateful_step_count=25)


async def test_sums_are_grouped_by_the_requested_fields(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    events = [event(1, tenant="a"), event(2, tenant="a", day=20_001), event(3, tenant="b"), event(4, tenant="b")]
    await store.keep_events(events)
    records = [UsageRecord.decode(each.message) for each in await store.list_owed("", 10)]
    assert await store.count_records("ledger", records, 4) == 4
    assert await store.count_records("ledger", records, 8) == 0

    async def rows(**query: object) -> list[tuple[str | None, str | None, int]]:
        found, *_ = await store.sum_usage(read_fields(UsageQuery, query))
        return [(row.tenant, row.day, row.requests) for row in found]

    assert await rows(by=["tenant"]) == [("a", None, 2), ("b", None, 2)]
    assert await rows(by=["day", "tenant"]) == [
        ("a", "2024-10-04", 1),
        ("b", "2024-10-04", 2),
        ("a", "2024-10-05", 1),
    ]
    assert await rows(by=[], since="2024-10-05") == [(None, None, 1)]
    assert await rows(by=[], until="2024-10-04", tenant="a", model="llama") == [(None, None, 1)]
    assert await rows(by=["model"], model="none") == []
    with pytest.raises(ValueError, match="not colour"):
        await store.sum_usage(UsageQuery(by=("colour",)))
    await store.close()


async def test_a_process_with_the_name_of_an_earlier_one_is_distinguished_from_it(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    first, other = event(1, tokens=1), event(1, tokens=2, request="r-2")
    assert first.key == other.key
    kept = await store.keep_events([first, first, other])
    assert (kept.new, kept.repeated) == (2, 1)
    assert len(await store.list_owed("", 10)) == 2
    await store.close()


async def test_old_events_go_and_sums_stay_for_longer(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), StoreBounds(event_days=1.0, event_bytes=2**30, sum_days=36_500.0))
    await store.keep_events([event(1), event(2)])
    await store.count_records("ledger", [UsageRecord.decode(each.message) for each in await store.list_owed("", 10)], 2)
    assert await store.delete_expired(event_stream_days=7.0) == 2
    assert await store.read_story("r-1") == ([], False)
    [row], *_ = await store.sum_usage(UsageQuery(by=()))
    assert row.requests == 2
    await store.close()


async def test_the_oldest_events_make_room_for_new_ones(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    entries = [event(number) for number in range(4000)]
    await store.keep_events(entries)
    records = [UsageRecord.decode(each.message) for each in await store.list_owed("", 4000)]
    await store.count_records("ledger", records, 4000)
    bound = await store.size() * 3 // 4
    await store.close()
    store = EventStore(Database(tmp_path), LONG._replace(event_bytes=bound))
    assert await store.delete_expired(event_stream_days=7.0) == 2000
    assert await store.size() <= bound
    assert (await store.read_story("r-1999"))[0] == []
    assert len((await store.read_story("r-2000"))[0]) == 1
    await store.close()


async def test_a_story_that_is_too_long_keeps_its_end(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    await store.keep_events([event(number, request="again") for number in range(3000)])
    events, more = await store.read_story("again")
    assert more
    assert 0 < len(events) < 3000
    assert ResponseCompleted.decode(events[-1].body).sequence == 2999
    await store.close()


VERSION_4 = """
DROP TABLE blocks;
DROP TABLE usage_owed;
CREATE TABLE usage_unwritten (key TEXT PRIMARY KEY, tenant TEXT NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 4;
"""


async def test_an_event_that_an_earlier_version_kept_is_known_when_it_comes_again(tmp_path: Path) -> None:
    kept, later = event(1), event(2)
    assert kept.owed
    database = Database(tmp_path)
    row = earlier_key_of(kept.key, kept.body), kept.request_id, kept.at_ms, kept.type, zlib.compress(kept.body)
    database.connection.execute("INSERT INTO events (key, request_id, at_ms, type, body) VALUES (?, ?, ?, ?, ?)", row)
    database.connection.executescript(VERSION_4)
    database.close()
    store = EventStore(Database(tmp_path), LONG)
    again = await store.keep_events([kept, later])
    assert (again.new, again.repeated) == (1, 1)
    for one in (kept, later):
        [story], _ = await store.read_story(one.request_id or "")
        assert story.body.encode() == one.body
    await store.close()


async def test_usage_that_an_earlier_version_owed_or_counted_is_charged_once(tmp_path: Path) -> None:
    (counted,), (owed,) = event(1).owed, event(2).owed
    database = Database(tmp_path)
    database.connection.executescript(VERSION_4)
    for each in (counted, owed):
        row = each.key, each.tenant, each.message
        database.connection.execute("INSERT INTO usage_unwritten VALUES (?, ?, ?)", row)
    database.connection.execute("INSERT INTO usage_counted VALUES (?, ?)", (earlier_key_of(counted.key), 5))
    database.close()
    store = EventStore(Database(tmp_path), LONG)
    assert [each.key for each in await store.list_owed("", 10)] == [owed.key]
    records = [UsageRecord.decode(each.message) for each in (counted, owed)]
    assert await store.count_records("ledger", records, 2) == 1
    assert await store.list_owed("", 10) == []
    await store.close()


async def test_a_record_isnt_owed_again_once_its_key_is_forgotten(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    read, unread = event(1), event(2)
    kept = await store.keep_events([read, unread])
    await store.count_records("ledger", [UsageRecord.decode(kept.owed[0].message)], 1)
    await store.delete_expired(event_stream_days=1.0)
    await store.close()
    store = EventStore(Database(tmp_path), LONG)
    assert [each.key for each in await store.list_owed("", 10)] == [kept.owed[1].key]
    await store.close()


async def test_usage_that_a_failed_transaction_owed_isnt_owed(tmp_path: Path) -> None:
    database = Database(tmp_path)
    store = EventStore(database, LONG)
    first, broken = event(1), msgspec.structs.replace(event(2), regret=(_UNKEEPABLE,))
    with pytest.raises(OverflowError):
        await store.keep_events([first, broken])
    assert await store.list_owed("", 10) == []
    kept = await store.keep_events([first])
    assert [each.key for each in await store.list_owed("", 10)] == [each.key for each in kept.owed]
    await store.close()


async def test_the_place_in_the_stream_is_that_of_the_events_that_are_kept(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    broken = msgspec.structs.replace(event(2), regret=(_UNKEEPABLE,))
    await store.keep_events([event(1)], ReadPlace("first", 20))
    with pytest.raises(OverflowError):
        await store.keep_events([broken], ReadPlace("first", 30))
    await store.keep_events([event(1)], ReadPlace("first", 10))  # delivered again
    await store.close()
    store = EventStore(Database(tmp_path), LONG)
    assert await store.read_place() == ReadPlace("first", 20)
    await store.keep_events([event(3)], ReadPlace("made anew", 1))
    assert await store.read_place() == ReadPlace("made anew", 1)
    await store.close()


_UNKEEPABLE = RegretSum(
    pool="p", hour="2026-03-01T09", profile="default", reason="", requests=1, judged=1, regret_us=2**70
)


async def test_repeated_events_among_new_ones_leave_each_with_its_own_body(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), LONG)
    entries = [event(number) for number in range(200)]
    await store.keep_events(entries[:70])
    kept = await store.keep_events(entries[30:])
    assert (kept.new, kept.repeated) == (130, 40)
    for one in entries:
        [story], _ = await store.read_story(one.request_id or "")
        assert story.body.encode() == one.body
    await store.close()


async def test_the_space_of_bodies_goes_with_their_events(tmp_path: Path) -> None:
    database = Database(tmp_path)
    store = EventStore(database, StoreBounds(event_days=1.0, event_bytes=2**30, sum_days=36_500.0))
    await store.keep_events([event(number) for number in range(100)])
    await store.keep_events([event(100, day=200_000)])
    assert await store.delete_expired(event_stream_days=7.0) == 100
    assert database.connection.execute("SELECT COUNT(*) FROM blocks").fetchall() == [(1,)]
    assert len((await store.read_story("r-100"))[0]) == 1
    await store.close()


async def test_entries_of_an_earlier_version_are_read_alike(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.connection.executescript(VERSION_4)
    row = (b"key", "r-1", 5, "request.scheduled.v1", zlib.compress(b'{"request_id": "r-1"}', 1))
    database.connection.execute("INSERT INTO events (key, request_id, at_ms, type, body) VALUES (?, ?, ?, ?, ?)", row)
    database.connection.executescript(
        """
        DROP TABLE regret_sums;
        DROP INDEX judgements;
        DROP TABLE usage_sums;
        CREATE TABLE usage_sums (
            day TEXT, tenant TEXT, subject TEXT, model TEXT,
            requests INTEGER, failed INTEGER, prompt_tokens INTEGER, cached_tokens INTEGER, completion_tokens INTEGER,
            reasoning_tokens INTEGER, estimated INTEGER, cost REAL, unpriced INTEGER,
            PRIMARY KEY (day, tenant, subject, model)
        ) WITHOUT ROWID;
        INSERT INTO usage_sums VALUES ('2026-03-01', 'acme', 'ci', 'llama', 2, 0, 10, 0, 5, 0, 0, 0.1, 1);
        PRAGMA user_version = 1;
        """
    )
    database.close()
    store = EventStore(Database(tmp_path), LONG)
    assert not store.fresh
    [event], _ = await store.read_story("r-1")
    assert event.body == '{"request_id": "r-1"}'
    sums = await store.sum_usage(UsageQuery(by=("day", "key")))
    assert [(row.day, row.key, row.requests, row.cost_nanos) for row in sums.rows] == [
        ("2026-03-01", "", 2, 100_000_000)
    ]
    assert sums.unpriced_models == ["llama"]
    await store.close()


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_bodies_come_back_as_they_were_kept(bodies: list[bytes]) -> None:
    assert unpacked(packed(bodies)) == bodies


def test_a_key_is_the_same_in_every_release() -> None:
    assert key_of(1_767_225_599_999, "edge-1/p/7:ä", b'{"a":1}').hex() == "019b76daa7ff9259564fcb5d2fe8b8e4"
    assert key_of(-5, "r").hex() == "0000000000001b6d30104138369e0fed"
    assert key_of(2**60, "r").hex() == "ffffffffffff1b6d30104138369e0fed"


@given(st.integers(-(2**63), 2**63 - 1))
def test_no_key_stands_for_a_later_time_than_it_says(at_ms: int) -> None:
    assert at_ms <= time_of(key_of(at_ms, "r"))


def test_a_folder_belongs_to_one_recorder(tmp_path: Path) -> None:
    first = Database(tmp_path)
    with pytest.raises(OSError, match="another recorder's"):
        Database(tmp_path)
    first.close()
    Database(tmp_path).close()


def test_entries_of_a_later_version_are_left_alone(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.connection.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(OSError, match="later version"):
        Database(tmp_path)
    assert (tmp_path / FILE).exists()
