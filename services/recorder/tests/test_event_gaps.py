"""A recorder knows which events are missing, and how many, from when to when."""

import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.event_loss import EventsLost, LostEvents
from pointsman_contracts.message import read_fields
from pointsman_contracts.usage import LostSum, UsageQuery
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_gaps_table import MAY_COME_MS
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.domain.entry import RecordedEvent, entry
from pointsman_recorder.domain.event_numbers import EventNumbers

pytestmark = pytest.mark.requirement("EVENTS-1")
SUBJECT = "pm.evt.response.started.v1.p"
TYPE = "response.started.v1"
BOUNDS = StoreBounds(30, 2**30, 800)
DAY_MS = 86_400_000


def event(number: int, at_ms: int, source: str = "edge-1") -> RecordedEvent:
    body = b'{"request_id":"r-%d","at_ms":%d}' % (number, at_ms)
    read = entry(TYPE, f"{SUBJECT}:{source}:{number}", body, lambda: 0)
    assert read is not None
    return read


def report(lost: LostEvents) -> RecordedEvent:
    told = EventsLost(source="edge-1", sequence=1, at_ms=lost.to_ms, lost=(lost,))
    read = entry("event.lost.v1", "pm.evt.event.lost.v1.frontend:edge-1:1", told.encode(), lambda: 0)
    assert read is not None
    return read


def lost(first: int, last: int, from_ms: int, to_ms: int) -> LostEvents:
    return LostEvents(
        subject=SUBJECT, source="edge-1", count=last - first + 1, first=first, last=last, from_ms=from_ms, to_ms=to_ms
    )


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore(Database(tmp_path), BOUNDS)


NOW_MS = time.time_ns() // 1_000_000
OLD_MS = NOW_MS - 10 * MAY_COME_MS


async def sums(store: EventStore, **query: str) -> list[LostSum]:
    return await store.sum_lost(read_fields(UsageQuery, query))


async def test_a_gap_that_nothing_fills_is_a_loss_with_its_time(store: EventStore) -> None:
    await store.keep_events([event(1, OLD_MS), event(2, OLD_MS + 10), event(6, OLD_MS + 500)])
    assert await sums(store) == [LostSum(type=TYPE, count=3, from_ms=OLD_MS + 10, to_ms=OLD_MS + 500)]
    # Others, and events that come twice, have nothing to do with it.
    await store.keep_events([event(6, OLD_MS + 500), event(4, OLD_MS, "edge-2"), event(5, OLD_MS, "edge-2")])
    assert [each.count for each in await sums(store)] == [3]
    # Events that come late were never lost.
    await store.keep_events([event(4, OLD_MS + 300)])
    assert [each.count for each in await sums(store)] == [2]
    await store.keep_events([event(3, OLD_MS + 200), event(5, OLD_MS + 400)])
    assert await sums(store) == []
    await store.close()


async def test_a_gap_counts_at_once_where_its_publisher_gave_the_events_up(store: EventStore) -> None:
    now_ms = time.time_ns() // 1_000_000
    await store.keep_events([event(1, now_ms), event(5, now_ms + 40)])
    assert await sums(store) == []  # the publisher may hold them
    await store.keep_events([report(lost(2, 4, now_ms + 1, now_ms + 3))])
    assert [each.count for each in await sums(store)] == [3]
    # No later event shows these.
    await store.keep_events([report(lost(6, 9, now_ms + 50, now_ms + 90))])
    assert await sums(store) == [LostSum(type=TYPE, count=7, from_ms=now_ms, to_ms=now_ms + 90)]
    await store.keep_events([event(10, now_ms + 100)])
    assert [each.count for each in await sums(store)] == [7]
    await store.close()


async def test_losses_are_known_to_the_next_process_and_by_day(tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), BOUNDS)
    at_ms = NOW_MS // DAY_MS * DAY_MS - DAY_MS + 1000
    await store.keep_events([event(1, at_ms), event(3, at_ms + 10)])
    await store.close()
    store = EventStore(Database(tmp_path), BOUNDS)
    await store.keep_events([event(5, at_ms + 20)])
    day = time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))
    assert [each.count for each in await sums(store, since=day, until=day)] == [2]
    assert await sums(store, until="2020-01-01") == []
    assert await sums(store, since="2200-01-01") == []
    await store.close()


@given(st.integers(2, 60), st.sets(st.integers(2, 59)), st.integers(0, 2**32))
def test_in_any_order_the_gaps_are_the_numbers_that_didnt_come(count: int, missing: set[int], seed: int) -> None:
    came = [number for number in range(2, count + 1) if number not in missing]
    random.Random(seed).shuffle(came)
    numbers = EventNumbers({}, {})
    numbers.note_events([event(1, 1)])
    for number in came:
        numbers.note_events([event(number, number)])
    greatest = max([1, *came])
    series = f"{SUBJECT}:edge-1"
    found = [number for gap in numbers.find_gaps(series) for number in range(gap.first, gap.last + 1)]
    assert sorted(found) == [number for number in range(2, greatest) if number in missing]
    assert all(gap.from_ms <= gap.to_ms for gap in numbers.find_gaps(series))
