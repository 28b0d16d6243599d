"""Stores answers in a PostgreSQL with pgvector, for all replicas of the service: they may outgrow the memory of one
process, and outlive it. The partition is part of every query's condition, before any distance."""

# asyncpg has no type information of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import orjson

from pointsman_contracts.message import read_part, write
from pointsman_contracts.response import Usage
from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning, Partition, decode_signature, encode_signature
from pointsman_semantic_cache.domain.store import NEAREST, Near, StoreUnavailable

TIMEOUT_S: Final = 0.3
"""The timeout of one query: a lookup that takes longer than the model's first token is of no use."""
CONNECT_S: Final = 2.0
CONNECTIONS: Final = 4
_SHARE: Final = 64
"""The size is looked at whenever this part of it came in since: so much it may be too large."""
_SCHEMA: Final = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS pointsman_cache (
    cache text, tenant text, subject text, model text, epoch text, key bytea,
    body bytea NOT NULL, content_type text NOT NULL, status integer NOT NULL, named text, verdict text NOT NULL,
    usage text, kept_ms bigint NOT NULL, expires_ms bigint NOT NULL, used_ms bigint NOT NULL, size bigint NOT NULL,
    context bytea, embedder text, signature bytea, vector vector,
    PRIMARY KEY (cache, tenant, subject, model, epoch, key)
);
CREATE INDEX IF NOT EXISTS pointsman_cache_questions
    ON pointsman_cache (cache, tenant, subject, model, epoch, context, embedder) WHERE vector IS NOT NULL;
CREATE INDEX IF NOT EXISTS pointsman_cache_used ON pointsman_cache (cache, used_ms);
"""
_LOCK: Final = 0x706F696E  # any number: replicas that begin at once make the table one after the other
_COLUMNS: Final = (
    "key, body, content_type, status, named, verdict, usage, kept_ms, expires_ms, context, embedder, signature, "
    "vector::text AS vector"
)
_WHERE: Final = "cache = $1 AND tenant = $2 AND subject = $3 AND model = $4 AND epoch = $5"
_EXACT: Final = (
    f"UPDATE pointsman_cache SET used_ms = $7 WHERE {_WHERE} AND key = $6 AND expires_ms > $7 RETURNING {_COLUMNS}"  # noqa: S608 - constants
)
_SEEN: Final = f"SELECT {_COLUMNS} FROM pointsman_cache WHERE {_WHERE} AND key = $6 AND expires_ms > $7"  # noqa: S608 - constants
_NEAR: Final = f"""
SELECT {_COLUMNS}, 1 - (vector <=> $8::text::vector) AS similarity FROM pointsman_cache
WHERE {_WHERE} AND context = $6 AND embedder = $7 AND expires_ms > $9 AND vector IS NOT NULL
  AND 1 - (vector <=> $8::text::vector) >= $10
ORDER BY vector <=> $8::text::vector LIMIT {NEAREST}
"""  # noqa: S608 - constants
_PUT: Final = """
INSERT INTO pointsman_cache VALUES
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $13, $15, $16, $17, $18, $19::text::vector)
ON CONFLICT (cache, tenant, subject, model, epoch, key) DO UPDATE SET
    body = excluded.body, content_type = excluded.content_type, status = excluded.status, named = excluded.named,
    verdict = excluded.verdict, usage = excluded.usage, kept_ms = excluded.kept_ms, expires_ms = excluded.expires_ms,
    used_ms = excluded.used_ms, size = excluded.size, context = excluded.context, embedder = excluded.embedder,
    signature = excluded.signature, vector = excluded.vector
"""
_SHRINK: Final = """
DELETE FROM pointsman_cache WHERE ctid IN (
    SELECT ctid FROM (
        SELECT ctid, expires_ms, sum(size) OVER (ORDER BY used_ms DESC, key) AS total
        FROM pointsman_cache WHERE cache = $1
    ) AS kept WHERE total > $2 OR expires_ms <= $3
)
"""
_PURGE: Final = (
    "DELETE FROM pointsman_cache WHERE ($1::text IS NULL OR cache = $1) AND ($2::text IS NULL OR tenant = $2)"
)


class PostgresStore:
    """Implements `Store`."""

    def __init__(self, url: str) -> None:
        """Connects when it is first asked."""
        self._url = url
        self._pool: Any = None
        self._opening = asyncio.Lock()
        self._came: dict[str, int] = {}

    async def find_exact(
        self, partition: Partition, key: bytes, now_ms: int, *, uses: bool = True
    ) -> CacheEntry | None:
        """Implements `EntryStore.find_exact`."""
        row = await self._ask("fetchrow", _EXACT if uses else _SEEN, *partition, key, now_ms)
        return None if row is None else _entry(row)

    async def find_near(self, partition: Partition, meaning: Meaning, threshold: float, now_ms: int) -> Sequence[Near]:
        """Implements `EntryStore.find_near`."""
        question = (meaning.context, meaning.embedder, _text(meaning), now_ms, threshold)
        rows = await self._ask("fetch", _NEAR, *partition, *question)
        return [Near(_entry(row), float(row["similarity"])) for row in rows]

    async def store_answer(self, partition: Partition, entry: CacheEntry, max_bytes: int) -> int:
        """Like `EntryStore.store_answer`; at most a sixty-fourth of `max_bytes` too much is kept."""
        meaning = entry.meaning
        usage = None if entry.usage is None else write(entry.usage).decode()
        question = (
            (None, None, None, None)
            if meaning is None
            else (meaning.context, meaning.embedder, encode_signature(meaning.signature), _text(meaning))
        )
        await self._ask(
            "execute", _PUT, *partition, entry.key, entry.body, entry.content_type, entry.status, entry.named,
            entry.verdict, usage, entry.kept_ms, entry.expires_ms, entry.size, *question,
        )  # fmt: skip
        cache = partition.cache
        came = self._came.get(cache, max_bytes) + entry.size
        self._came[cache] = came
        if came * _SHARE < max_bytes:
            return 0
        self._came[cache] = 0
        return _count(await self._ask("execute", _SHRINK, cache, max_bytes, entry.kept_ms))

    async def purge_answers(self, cache: str | None, tenant: str | None) -> int:
        """Implements `EntryStore.purge_answers`."""
        return _count(await self._ask("execute", _PURGE, cache, tenant))

    async def close(self) -> None:
        """Implements `EntryStore.close`."""
        if self._pool is not None:
            await self._pool.close()

    async def _ask(self, method: str, query: str, *arguments: object) -> Any:
        """The result of the pool's method of this name."""
        try:
            import asyncpg
        except ImportError as error:
            raise StoreUnavailable("install pointsman-semantic-cache[postgres]") from error
        try:
            pool = self._pool if self._pool is not None else await self._opened(asyncpg.create_pool)
            return await getattr(pool, method)(query, *arguments)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(f"PostgreSQL: {type(error).__name__}") from error
        except (OSError, TimeoutError, ValueError) as error:
            raise StoreUnavailable(f"PostgreSQL can't be reached: {type(error).__name__}") from error

    async def _opened(self, create_pool: Callable[..., Any]) -> Any:
        async with self._opening:
            if self._pool is None:
                pool = await create_pool(
                    self._url, min_size=1, max_size=CONNECTIONS, command_timeout=TIMEOUT_S, timeout=CONNECT_S
                )
                try:
                    async with pool.acquire() as connection, connection.transaction():
                        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                        await connection.execute(_SCHEMA, timeout=10)
                # After a cancellation too: no other code closes these connections.
                except BaseException:
                    pool.terminate()
                    raise
                self._pool = pool
            return self._pool


def _text(meaning: Meaning) -> str:
    return "[" + ",".join(f"{value:.7g}" for value in meaning.vector.tolist()) + "]"


def _count(status: str) -> int:
    """From `DELETE 3`."""
    return int(status.rpartition(" ")[2])


def _entry(row: Any) -> CacheEntry:  # an asyncpg.Record, whose columns have any type
    meaning = None
    if row["vector"] is not None:
        vector = np.array(orjson.loads(row["vector"]), np.float32)
        meaning = Meaning(row["context"], row["embedder"], vector, decode_signature(row["signature"]))
    usage = None if row["usage"] is None else read_part(Usage, row["usage"])
    return CacheEntry(
        key=row["key"], body=row["body"], content_type=row["content_type"], status=row["status"],
        named=row["named"], verdict=row["verdict"], usage=usage, kept_ms=row["kept_ms"],
        expires_ms=row["expires_ms"], meaning=meaning,
    )  # fmt: skip
