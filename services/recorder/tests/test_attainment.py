"""Sums of service levels are those of the events, whatever the span and the rows, and however often events come."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.attainment import AttainmentQuery, AttainmentSum
from pointsman_contracts.identity import Identity
from pointsman_contracts.message import Message, read_fields
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.service_level import ServicePromise
from pointsman_recorder.adapters.attainment_table import AMOUNTS, KEYS
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.domain.attainment_row import LONGEST_MS, MOST_TOKENS
from pointsman_recorder.domain.entry import RecordedEvent, entry

LONG = StoreBounds(event_days=1e4, event_bytes=2**30, sum_days=2e4)
MINUTE_MS = 60_000
START_MS = 30_000_000 * MINUTE_MS

times = st.one_of(st.none(), st.floats(0, 5000), st.sampled_from((-1.0, 1e300, LONGEST_MS)))
tokens = st.one_of(st.integers(0, 2000), st.sampled_from((MOST_TOKENS, 2**62)))
at = st.one_of(st.integers(START_MS, START_MS + 5 * MINUTE_MS), st.sampled_from((-1, 2**60)))
classes, tenants, models = st.sampled_from(("gold", "")), st.sampled_from(("acme", "")), st.sampled_from(("m", "n"))


def answer(at_ms: int, model: str, tenant: str, level: str | None, **fields: Any) -> ResponseCompleted:
    promise = None if level is None else ServicePromise(
        service_class=level, ttft_ms=fields["promised"], predicted_ttft_ms=fields["predicted"]
    )  # fmt: skip
    status = 429 if fields["outcome"] == "rejected" else 200
    return ResponseCompleted(
        request_id="r", source="e", sequence=1, at_ms=at_ms, pool="p", model=model, status=status,
        outcome=fields["outcome"], ttft_ms=fields["got"], promise=promise, kept=fields["kept"],
        identity=Identity(tenant=tenant), usage=Usage(completion_tokens=fields["tokens"]),
    )  # fmt: skip


answers = st.builds(
    answer, at, models, tenants, st.one_of(st.none(), classes), outcome=st.sampled_from(("ok", "rejected")),
    kept=st.sampled_from((True, False, None)),
    tokens=tokens, promised=times, predicted=times, got=times,
)  # fmt: skip


def kept_form(number: int, event: Message) -> RecordedEvent:
    found = entry(event.address.type_id, f"e:{number}", event.encode(), lambda: 0)
    assert found is not None
    return found


def whole_us(ms: float | None) -> int | None:
    return None if ms is None or not 0 <= ms <= LONGEST_MS else round(1000 * ms)


def by_hand(events: Sequence[ResponseCompleted], by: Sequence[str]) -> dict[tuple[str, ...], dict[str, int]]:
    """The sums, counted one by one."""
    rows: dict[tuple[str, ...], dict[str, int]] = {}
    for event in events:
        promise = event.promise
        if promise is None:
            continue
        names = {
            "service_class": promise.service_class,
            "tenant": event.identity.tenant if event.identity else "",
            "model": event.model or "",
        }
        row = rows.setdefault(tuple(names[name] for name in by), dict.fromkeys(AMOUNTS, 0))
        if event.outcome == "rejected":
            row["refused"] += 1
            continue
        row[{True: "kept", False: "missed", None: "unknown"}[event.kept]] += 1
        if event.kept and event.usage is not None and event.usage.completion_tokens <= MOST_TOKENS:
            row["tokens"] += event.usage.completion_tokens
        promised, predicted, got = map(whole_us, (promise.ttft_ms, promise.predicted_ttft_ms, event.ttft_ms))
        if promised is not None:
            row["promised"] += 1
            row["promised_us"] += promised
        if predicted is not None and got is not None:
            row["predicted"] += 1
            row["predicted_us"] += predicted
            row["got_us"] += got
    return rows


@given(
    st.lists(answers, max_size=30),
    st.lists(st.integers(0, 29)),
    st.one_of(st.none(), st.integers(0, 5)),
    st.one_of(st.none(), st.integers(0, 6)),
    st.sets(st.sampled_from(KEYS)),
)
def test_sums_are_those_of_the_events_of_the_span(
    events: list[ResponseCompleted],
    again: list[int],
    since: int | None,
    until: int | None,
    names: set[str],
) -> None:
    by = tuple(name for name in KEYS if name in names)
    since_ms = None if since is None else START_MS + since * MINUTE_MS
    until_ms = None if until is None else START_MS + until * MINUTE_MS
    asked = AttainmentQuery(by=by, since_ms=since_ms, until_ms=until_ms)

    async def found() -> tuple[AttainmentSum, ...]:
        with TemporaryDirectory() as folder:
            store = EventStore(Database(Path(folder)), LONG)
            kept = [kept_form(number, event) for number, event in enumerate(events)]
            await store.keep_events(kept)
            await store.keep_events([kept[place] for place in again if place < len(kept)])
            sums, lost = await store.sum_attainment(asked)
            await store.close()
            assert not sums.more
            assert not lost
            return tuple(sums.rows)

    wanted = by_hand(
        [
            event for event in events
            if (since_ms is None or event.at_ms >= since_ms) and (until_ms is None or event.at_ms < until_ms)
        ],
        by,
    )  # fmt: skip
    rows = asyncio.run(found())
    assert {
        tuple(getattr(row, name) for name in by): {name: getattr(row, name) for name in AMOUNTS} for row in rows
    } == wanted
    assert [row.missed for row in rows] == sorted((row.missed for row in rows), reverse=True)


async def test_sums_say_when_they_begin_and_last_two_days(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    hour_ms = 60 * MINUTE_MS
    store = EventStore(Database(tmp_path), LONG)
    empty, _ = await store.sum_attainment(AttainmentQuery(since_ms=now_ms - hour_ms))
    assert (empty.rows, empty.until_ms - empty.since_ms < MINUTE_MS) == ([], True)
    end = {"request_id": "r", "source": "e", "sequence": 1, "pool": "p", "status": 200, "outcome": "ok"}
    promised = {"promise": {"service_class": "c", "ttft_ms": 800.0}, "kept": True}
    ages = (50 * hour_ms, 30 * hour_ms, 0, -30 * hour_ms)
    events = [read_fields(ResponseCompleted, end | promised | {"at_ms": now_ms - age}) for age in ages]
    await store.keep_events([kept_form(number, event) for number, event in enumerate(events)])
    every, _ = await store.sum_attainment(AttainmentQuery())
    assert [row.kept for row in every.rows] == [4]
    await store.delete_expired(1e4)
    # A clock that is more than a day ahead doesn't count for a year.
    sums, _ = await store.sum_attainment(AttainmentQuery(since_ms=now_ms - 100 * hour_ms))
    assert [row.kept for row in sums.rows] == [2]
    assert sums.since_ms == (now_ms - 30 * hour_ms) // MINUTE_MS * MINUTE_MS
    last, _ = await store.sum_attainment(AttainmentQuery(since_ms=now_ms - hour_ms))
    assert [row.kept for row in last.rows] == [1]
    assert last.since_ms == (now_ms - hour_ms) // MINUTE_MS * MINUTE_MS
    with pytest.raises(ValueError, match="pool"):
        await store.sum_attainment(AttainmentQuery(by=("pool",)))
    await store.close()
