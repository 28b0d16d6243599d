"""Shares and idle time add up to the engines' hours and their price, whatever events say and however they come."""

import asyncio
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSum
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Target
from pointsman_contracts.pool import EnginePrice, PoolSnapshot, WorkerView
from pointsman_contracts.response import Attempt, LegReport, ResponseCompleted, Seam, Usage
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.engine_time_table import EngineTimeTable
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.domain.engine_listings import EngineListings
from pointsman_recorder.domain.engine_work import PERIOD_US, Stretch, works_of_end
from pointsman_recorder.domain.entry import RecordedEvent, entry

START_US: Final = 6_000_000 * PERIOD_US
SECOND_US: Final = 1_000_000
PRICE: Final = EnginePrice(hour_nanos=3_600_000_000)
"""A thousand nano-dollars a millisecond."""
ENGINES: Final = ("a", "b")
EVERY: Final = ("pool", "engine", "tenant", "subject", "key", "model", "day")
TENANTS: Final = ("acme", "umbra", "")


def completion(worker: str | None, end_s: float, duration_s: float, **fields: Any) -> ResponseCompleted:
    given: dict[str, Any] = {"usage": Usage(prompt_tokens=100, completion_tokens=50), "outcome": "ok"} | fields
    return ResponseCompleted(
        request_id="r", source="e", sequence=1, at_ms=START_US // 1000 + round(end_s * 1000), pool="p", worker=worker,
        target=Target(model="m", pool="p"), model="m", status=200, duration_ms=duration_s * 1000, **given,
    )  # fmt: skip


def answer(
    tenant: str,
    worker: str,
    end_s: float,
    duration_s: float,
    first: float,
    usage: Usage | None,
    moved: bool,
    **fields: Any,
) -> ResponseCompleted:
    duration_ms = duration_s * 1000
    other = ENGINES[worker == "a"]
    seam = Seam(worker=other, next_worker=worker, form="exact", at_ms=0.7 * duration_ms, kept_tokens=30)
    return completion(
        worker, end_s, duration_s, identity=Identity(tenant=tenant), usage=usage, ttft_ms=first * duration_ms,
        seams=(seam,) if moved else (), **fields,
    )  # fmt: skip


seconds = st.one_of(st.integers(0, 900), st.floats(0, 900))
usages = st.one_of(
    st.none(),
    st.builds(Usage, prompt_tokens=st.integers(0, 10**5), cached_tokens=st.integers(0, 10**5),
              completion_tokens=st.sampled_from((0, 1, 50, 10**4, 2**62)), cached_unknown=st.booleans()),
)  # fmt: skip
attempts = st.lists(
    st.builds(Attempt, worker=st.sampled_from(ENGINES), outcome=st.sampled_from(("answered", "failed", "escalated")),
              took_ms=st.sampled_from((0.0, 1500.0, 1e12, -5.0))), max_size=3,
).map(tuple)  # fmt: skip
legs = st.lists(
    st.builds(LegReport, leg=st.just("prefill"), worker=st.sampled_from(ENGINES), took_ms=st.floats(0, 9e5),
              outcome=st.sampled_from(("answered", "failed"))), max_size=1,
).map(tuple)  # fmt: skip
answers = st.builds(
    answer, st.sampled_from(TENANTS), st.sampled_from(ENGINES), seconds,
    st.one_of(seconds, st.sampled_from((-1.0, 1e300, 2500.0))), st.floats(0, 1), usages, st.booleans(),
    stream=st.booleans(), attempts=attempts, legs=legs, outcome=st.sampled_from(("ok", "client_gone", "routed")),
)  # fmt: skip
lives = st.lists(st.tuples(st.sampled_from(ENGINES), seconds, st.sampled_from(("serving", "silent")),
                           st.sampled_from(("1", "2", ""))), max_size=12)  # fmt: skip


class Recorded:
    """A table of engine time in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.database = Database(folder)
        self.database.connection.execute("PRAGMA synchronous = OFF")
        self.table = EngineTimeTable(self.database)

    def list_engine(self, engine: str, at_s: float, state: str = "serving", boot: str = "1") -> None:
        view = WorkerView(worker=engine, url="http://e", state=state, boot_id=boot)
        at_us = START_US + round(at_s * SECOND_US)
        snapshot = PoolSnapshot(pool="p", source="c", sequence=1, at_ms=0, workers=(view,), price=PRICE)
        self.table.lives.take_snapshot(snapshot, at_us)
        self.table.add_lives(self.table.lives.take_changed())

    def add(self, ends: Sequence[ResponseCompleted], at_s: float = 900) -> None:
        self.table.add_answers(ends, START_US + round(at_s * SECOND_US))

    def close(self, at_s: float) -> None:
        self.table.close_periods(START_US + round(at_s * SECOND_US))

    def sums(self, *by: str, **wanted: str) -> tuple[dict[tuple[str, ...], EngineTimeSum], int, int]:
        found = self.table.sum_engine_time(EngineTimeQuery(by=by, **wanted), 1000)
        rows = {(row.state, *(str(getattr(row, name)) for name in by)): row for row in found.rows}
        return rows, found.total_us, found.total_nanos


@contextmanager
def recorded() -> Generator[Recorded]:
    with TemporaryDirectory() as folder:
        it = Recorded(Path(folder))
        try:
            yield it
        finally:
            it.database.close()


def by_hand(
    listed: Sequence[tuple[str, int, int, bool]], ends: Sequence[ResponseCompleted]
) -> Counter[tuple[str, str]]:
    """Microseconds by state and tenant, each moment divided by itself."""
    sums: Counter[tuple[str, str]] = Counter()
    work: dict[str, list[tuple[Stretch, str, int]]] = {engine: [] for engine in ENGINES}
    for end in ends:
        tenant = end.identity.tenant if end.identity is not None else ""
        for stretch in (stretch for each in works_of_end(end) for stretch in each.stretches):
            work[stretch.engine].append((stretch, tenant, stretch.find_pace(PRICE) or 0))
    for engine, there in work.items():
        alive = [(first, last, up) for each, first, last, up in listed if each == engine]
        times = {t for stretch, _, _ in there for t in (stretch.from_us, stretch.until_us)}
        times |= {t for first, last, _ in alive for t in (first, last)}
        ordered = sorted(times)
        for first, last in pairwise(ordered):
            running = [each for each in there if each[0].from_us <= first and last <= each[0].until_us]
            states = [up for begin, until, up in alive if begin <= first and last <= until]
            whole = sum(pace for _, _, pace in running)
            for _, tenant, pace in running:
                if whole:
                    sums["answers", tenant] += (last - first) * pace / whole  # type: ignore[assignment]
            if not whole and (running or (states and not any(states))):
                sums["unknown", ""] += last - first
            elif not whole and any(states):
                sums["idle", ""] += last - first
    return sums


@settings(max_examples=40)
@given(lives, st.lists(answers, max_size=8), st.integers(0, 7), st.booleans(), st.integers(1, 1800))
def test_shares_and_idle_time_add_up_to_the_hours_of_the_engines_and_their_price(
    listed: list[tuple[str, float, str, str]], ends: list[ResponseCompleted], split: int, closes: bool, late_s: int
) -> None:
    with recorded() as it:
        # All engines have a price from the beginning, and are known for a moment at least.
        for engine in ENGINES:
            it.list_engine(engine, -5000)
        for engine, at_s, state, boot in sorted(listed, key=lambda each: each[1]):
            it.list_engine(engine, at_s, state, boot)
        it.add(ends[split:])
        it.sums(*EVERY)
        if closes:
            it.close(late_s)  # nothing is old enough to be added to its day
        it.add(ends[:split])
        rows, total_us, total_nanos = it.sums(*EVERY)
        lives_there = it.database.connection.execute(
            "SELECT engine, from_us, until_us, up FROM engine_listings"
        ).fetchall()
        expected = by_hand(lives_there, ends)
        found: Counter[tuple[str, str]] = Counter()
        for row in rows.values():
            assert min(row.time_us, row.time_nanos) >= 0
            found[row.state, row.tenant or ""] += row.time_us
        assert sum(found.values()) == total_us == round(sum(expected.values()))
        assert sum(row.time_nanos for row in rows.values()) == total_nanos
        assert abs(total_nanos - total_us * PRICE.hour_nanos / 3.6e9) <= len(rows) * 1000
        periods = 50
        for key in found.keys() | expected.keys():
            assert abs(found[key] - expected[key]) <= 1e-6 * total_us + periods * (len(ends) + 1), key
        # The same, once periods are added to the sums of their days, and after the recorder has begun again.
        it.close(900 + 3600 + 600)
        assert it.sums(*EVERY)[1:] == (total_us, total_nanos)


def us_of(rows: dict[tuple[str, ...], EngineTimeSum]) -> dict[tuple[str, ...], float]:
    return {key: row.time_us / SECOND_US for key, row in rows.items()}


def listed_throughout(it: Recorded, engine: str, until_s: int) -> None:
    for at_s in range(0, until_s + 1, 4):
        it.list_engine(engine, at_s)


def test_an_answer_that_runs_alone_has_its_own_time_and_none_of_the_idle_time() -> None:
    with recorded() as it:
        listed_throughout(it, "a", 100)
        it.add([completion("a", 30, 10, identity=Identity(tenant="acme"))])
        rows, total_us, total_nanos = it.sums("tenant")
        assert us_of(rows) == {("answers", "acme"): 10.0, ("idle", ""): 90.0}
        assert (total_us, total_nanos) == (100 * SECOND_US, 100 * SECOND_US)


def test_answers_that_run_together_divide_the_time_by_the_tokens_that_were_computed() -> None:
    cached = Usage(prompt_tokens=1100, cached_tokens=1000, completion_tokens=100)
    whole = Usage(prompt_tokens=1100, completion_tokens=100)
    with recorded() as it:
        listed_throughout(it, "a", 20)
        it.add([completion("a", 16, 16, identity=Identity(tenant="cached"), usage=cached),
                completion("a", 16, 16, identity=Identity(tenant="whole"), usage=whole)])  # fmt: skip
        found = us_of(it.sums("tenant")[0])
        # 100 + 2 * 100 against 1,100 + 2 * 100
        assert found["answers", "cached"] == pytest.approx(3.0, abs=1e-5)
        assert found["answers", "whole"] == pytest.approx(13.0, abs=1e-5)
        assert found["idle", ""] == pytest.approx(4.0, abs=1e-5)


def test_a_failed_attempt_is_no_clients_time_and_the_answer_of_the_next_engine_is_charged_once() -> None:
    attempts = (
        Attempt(worker="b", outcome="timeout", took_ms=8000),
        Attempt(worker="a", outcome="answered", took_ms=2000),
    )
    with recorded() as it:
        for engine in ENGINES:
            listed_throughout(it, engine, 20)
        it.add([completion("a", 12, 10.5, attempts=attempts, identity=Identity(tenant="acme"))])
        assert us_of(it.sums("tenant", "engine")[0]) == {
            ("answers", "acme", "a"): 2.0, ("unknown", "", "b"): 8.0, ("idle", "", "a"): 18.0, ("idle", "", "b"): 12.0,
        }  # fmt: skip


def test_a_stream_that_moved_counts_at_each_engine_for_its_part() -> None:
    seam = Seam(worker="a", next_worker="b", form="exact", at_ms=6000, gap_ms=500, kept_tokens=30)
    with recorded() as it:
        for engine in ENGINES:
            listed_throughout(it, engine, 20)
        it.add([completion("b", 10, 10, stream=True, ttft_ms=2000, seams=(seam,), identity=Identity(tenant="acme"))])
        found = us_of(it.sums("tenant", "engine")[0])
        assert (found["answers", "acme", "a"], found["answers", "acme", "b"]) == (6.0, 4.0)


def test_the_time_of_a_silent_engine_is_unknown_and_that_of_one_that_is_gone_is_not_counted() -> None:
    with recorded() as it:
        it.list_engine("a", 0)
        it.list_engine("a", 4)
        it.list_engine("a", 6, "silent")
        it.list_engine("a", 100, boot="2")
        it.list_engine("a", 103, boot="2")
        assert us_of(it.sums()[0]) == {("idle",): 7.0, ("unknown",): 2.0}


def test_a_recorder_that_was_away_counts_an_engine_of_the_same_boot_meanwhile(tmp_path: Path) -> None:
    before = Recorded(tmp_path)
    before.list_engine("a", 0)
    before.list_engine("a", 4)
    before.database.close()
    again = Recorded(tmp_path)
    again.list_engine("a", 4000)
    again.add([completion("a", 3000, 10)])
    assert us_of(again.sums()[0]) == {("answers",): 10.0, ("idle",): 3990.0}
    again.database.close()


def test_the_end_of_a_request_that_comes_too_late_is_shown_as_unknown_and_changes_no_time() -> None:
    with recorded() as it:
        listed_throughout(it, "a", 100)
        it.list_engine("a", 3 * 3600)
        it.close(3 * 3600)
        it.add([completion("a", 30, 10, identity=Identity(tenant="acme")), completion("a", 1e12, 10)], 3 * 3600)
        rows, total_us, _ = it.sums("tenant")
        assert rows["unknown", ""].answers == 2
        assert us_of(rows)["idle", ""] * SECOND_US == total_us == 3 * 3600 * SECOND_US


@pytest.mark.parametrize("seconds", [150, 3])
def test_an_event_that_comes_twice_counts_once_and_one_without_a_price_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """`seconds` of a period have passed: the answer may have begun before, when its engine had no price."""
    monkeypatch.setattr(time, "time_ns", lambda: (START_US + seconds * SECOND_US) * 1000)

    def kept_form(number: int, end: ResponseCompleted) -> RecordedEvent:
        found = entry(end.address.type_id, f"e:{number}", end.encode(), lambda: 0)
        assert found is not None
        return found

    async def check() -> EngineTimeSum:
        store = EventStore(Database(tmp_path), StoreBounds(event_days=1e4, event_bytes=2**30, sum_days=2e4))
        now_ms = time.time_ns() // 1_000_000
        view = WorkerView(worker="a", url="http://e", boot_id="1")
        store.note_engines(PoolSnapshot(pool="p", source="c", sequence=1, at_ms=0, workers=(view,), price=PRICE))
        mine = kept_form(1, replace(completion("a", 0, 10), at_ms=now_ms))
        other = kept_form(2, replace(completion("a", 0, 10), at_ms=now_ms, target=Target(model="m", pool="free")))
        for _ in range(2):
            await store.keep_events([mine, other, mine])
        await store.sum_engine_time(EngineTimeQuery(by=()))
        found = await store.sum_engine_time(EngineTimeQuery(by=()))
        await store.close()
        [row] = [row for row in found.rows if row.state == "answers"]
        return row

    row = asyncio.run(check())
    assert row.answers == 1
    assert row.time_us <= 10 * SECOND_US


def test_a_clients_rows_are_without_idle_time_and_a_share_is_of_all_time() -> None:
    with recorded() as it:
        listed_throughout(it, "a", 100)
        it.add([completion("a", 30, 10, identity=Identity(tenant="acme")), completion("a", 60, 20)])
        rows, total_us, _ = it.sums("tenant", tenant="acme")
        assert us_of(rows) == {("answers", "acme"): 10.0}
        assert total_us == 100 * SECOND_US
        with pytest.raises(ValueError, match="not planet"):
            it.sums("planet")


def test_engines_that_are_long_gone_are_forgotten() -> None:
    lives = EngineListings([])
    for hours in range(0, 24 * 30, 6):
        views = (WorkerView(worker=f"pod-{hours}", url="http://127.0.0.1:1"),)
        lives.take_snapshot(
            PoolSnapshot(pool="p", source="c", sequence=1, at_ms=0, workers=views, price=PRICE),
            START_US + hours * 3600 * SECOND_US,
        )
        lives.take_changed()
    assert len(vars(lives)["_latest"]) <= 7 * 4 + 1
