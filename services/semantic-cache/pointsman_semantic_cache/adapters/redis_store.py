"""Stores answers in a Redis or Valkey, for all replicas of the service.

No module is needed: the vectors of a partition and context are compared here, those of the `COMPARED` newest questions.
All keys of a cache have one hash tag, so that they are in one slot of a cluster.
"""

# Its commands are typed for clients that wait and for those that don't at once.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np
import orjson

from pointsman_contracts.message import fields_of, read_fields
from pointsman_contracts.response import Usage
from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning, Partition, decode_signature, encode_signature
from pointsman_semantic_cache.domain.store import NEAREST, Near, StoreUnavailable

TIMEOUT_S: Final = 0.3
"""The timeout of one command: a lookup that takes longer than the model's first token is of no use."""
CONNECT_S: Final = 2.0
CONNECTIONS: Final = 8
COMPARED: Final = 1024
"""Questions of one partition and context that a lookup compares, the newest ones: 1.5 MB of vectors of 384 places."""
_TOGETHER: Final = 500
_CACHES: Final = "pointsman:caches"
_FORGET: Final = """
local base = KEYS[1]
local function forget(member)
    local size = redis.call('HGET', base .. ':sizes', member)
    if not size then return 0 end
    redis.call('DEL', base .. ':answer:' .. member)
    redis.call('HDEL', base .. ':sizes', member)
    redis.call('DECRBY', base .. ':bytes', size)
    redis.call('ZREM', base .. ':used', member)
    redis.call('ZREM', base .. ':expires', member)
    local group = redis.call('HGET', base .. ':groups', member)
    if group then
        redis.call('HDEL', base .. ':groups', member)
        redis.call('ZREM', base .. ':near:' .. group, member)
        redis.call('HDEL', base .. ':vectors:' .. group, member)
    end
    return 1
end
"""
_FORGET_ALL: Final = f"""{_FORGET}
local gone = 0
for _, member in ipairs(ARGV) do gone = gone + forget(member) end
return gone
"""
_PUT: Final = f"""{_FORGET}
local member, answer, size, kept, expires, most, group, vector = unpack(ARGV)
forget(member)
for _, old in ipairs(redis.call('ZRANGEBYSCORE', base .. ':expires', '-inf', kept, 'LIMIT', 0, 64)) do forget(old) end
redis.call('SET', base .. ':answer:' .. member, answer)
redis.call('HSET', base .. ':sizes', member, size)
local bytes = redis.call('INCRBY', base .. ':bytes', size)
redis.call('ZADD', base .. ':used', kept, member)
redis.call('ZADD', base .. ':expires', expires, member)
if group ~= '' then
    redis.call('HSET', base .. ':groups', member, group)
    redis.call('ZADD', base .. ':near:' .. group, kept, member)
    redis.call('HSET', base .. ':vectors:' .. group, member, vector)
end
local gone = 0
while bytes > tonumber(most) do
    local oldest = redis.call('ZRANGE', base .. ':used', 0, 1)
    local old = oldest[1] ~= member and oldest[1] or oldest[2]
    if not old then break end
    gone = gone + forget(old)
    bytes = tonumber(redis.call('GET', base .. ':bytes'))
end
return gone
"""


class RedisStore:
    """Implements `EntryStore`."""

    def __init__(self, url: str) -> None:
        """Connects when it is first asked."""
        scheme, mark, rest = url.partition("://")
        self._url = f"{scheme.replace('valkey', 'redis', 1)}{mark}{rest}"
        self._client: Any = None

    async def find_exact(
        self, partition: Partition, key: bytes, now_ms: int, *, uses: bool = True
    ) -> CacheEntry | None:
        """Implements `EntryStore.find_exact`."""
        base, member = _base(partition.cache), _member(partition, key)

        async def ask(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.get(f"{base}:answer:{member}")
            if uses:
                pipeline.zadd(f"{base}:used", {member: now_ms}, xx=True)
            return await pipeline.execute()

        answer, *_ = await self._ask(ask)
        return _fresh(answer, now_ms)

    async def find_near(self, partition: Partition, meaning: Meaning, threshold: float, now_ms: int) -> Sequence[Near]:
        """Implements `EntryStore.find_near`, among the `COMPARED` newest questions."""
        base, group = _base(partition.cache), _group(partition, meaning)
        members = await self._ask(lambda client: client.zrevrange(f"{base}:near:{group}", 0, COMPARED - 1))
        if not members:
            return []
        packed = await self._ask(lambda client: client.hmget(f"{base}:vectors:{group}", members))
        size = meaning.vector.nbytes
        known = [(member, data) for member, data in zip(members, packed, strict=True) if data and len(data) == size]
        if not known:
            return []
        vectors = np.frombuffer(b"".join(data for _, data in known), "<f4").reshape(len(known), -1)
        similarities = vectors @ meaning.vector
        order = np.argsort(-similarities, kind="stable")[:NEAREST]
        nearest = [(known[place][0], float(similarities[place])) for place in order.tolist()]
        nearest = [each for each in nearest if each[1] >= threshold]
        if not nearest:
            return []
        keys = [f"{base}:answer:{member.decode()}" for member, _ in nearest]
        answers = await self._ask(lambda client: client.mget(keys))
        entries = [_fresh(answer, now_ms) for answer in answers]
        return [
            Near(entry, similarity)
            for entry, (_, similarity) in zip(entries, nearest, strict=True)
            if entry is not None
        ]

    async def store_answer(self, partition: Partition, entry: CacheEntry, max_bytes: int) -> int:
        """Implements `EntryStore.store_answer`."""
        base, meaning = _base(partition.cache), entry.meaning
        group, vector = "", b""
        if meaning is not None:
            group, vector = _group(partition, meaning), meaning.vector.astype("<f4").tobytes()
        values = (
            _member(partition, entry.key), _written(entry), entry.size, entry.kept_ms, entry.expires_ms, max_bytes,
            group, vector,
        )  # fmt: skip

        async def ask(client: Any) -> Any:
            await client.sadd(_CACHES, partition.cache)
            return await client.eval(_PUT, 1, base, *values)

        return int(await self._ask(ask))

    async def purge_answers(self, cache: str | None, tenant: str | None) -> int:
        """Implements `EntryStore.purge_answers`."""
        known = await self._ask(lambda client: client.smembers(_CACHES))
        caches = [each.decode() for each in known] if cache is None else [cache]
        return sum([await self._purge(each, tenant) for each in caches])

    async def close(self) -> None:
        """Implements `EntryStore.close`."""
        if self._client is not None:
            await self._client.aclose()

    async def _purge(self, cache: str, tenant: str | None) -> int:
        base, pattern = _base(cache), "*" if tenant is None else f"{_digest(tenant)}/*"

        async def list_members(client: Any) -> list[bytes]:
            return [member async for member, _ in client.zscan_iter(f"{base}:used", match=pattern, count=_TOGETHER)]

        members = list(dict.fromkeys(await self._ask(list_members)))
        gone = 0
        for first in range(0, len(members), _TOGETHER):
            some = members[first : first + _TOGETHER]
            gone += int(await self._ask(lambda client, some=some: client.eval(_FORGET_ALL, 1, base, *some)))
        return gone

    async def _ask(self, command: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            import redis.asyncio as library
            from redis.exceptions import RedisError
        except ImportError as error:
            raise StoreUnavailable("install pointsman-semantic-cache[redis]") from error
        try:
            if self._client is None:
                self._client = library.from_url(
                    self._url,
                    socket_timeout=TIMEOUT_S,
                    socket_connect_timeout=CONNECT_S,
                    max_connections=CONNECTIONS,
                )
            return await command(self._client)
        except (library.ConnectionError, library.TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise StoreUnavailable(f"Redis can't be reached: {type(error).__name__}") from error
        except (RedisError, ValueError) as error:
            raise StoreUnavailable(f"Redis: {type(error).__name__}") from error


def _base(cache: str) -> str:
    return f"pointsman:{{{cache}}}"


def _digest(*names: str | bytes) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name in names:
        data = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.hexdigest()


def _member(partition: Partition, key: bytes) -> str:
    """An answer's name within its cache; begins with its tenant."""
    return f"{_digest(partition.tenant)}/{_digest(*partition, key)}"


def _group(partition: Partition, meaning: Meaning) -> str:
    """The questions that are compared with one another."""
    return _digest(*partition, meaning.context, meaning.embedder)


def _fresh(answer: bytes | None, now_ms: int) -> CacheEntry | None:
    """An answer that hasn't expired. Raises StoreUnavailable for one that this store didn't write."""
    if answer is None:
        return None
    try:
        entry = _entry(answer)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreUnavailable("Redis: a stored answer can't be read") from error
    return entry if entry.expires_ms > now_ms else None


def _written(entry: CacheEntry) -> bytes:
    """A line of JSON, then vector and body."""
    meaning = entry.meaning
    told = None
    vector = b""
    if meaning is not None:
        vector = meaning.vector.astype("<f4").tobytes()
        told = [meaning.context.hex(), meaning.embedder, len(vector), encode_signature(meaning.signature).decode()]
    head = {
        "key": entry.key.hex(), "content_type": entry.content_type, "status": entry.status, "named": entry.named,
        "verdict": entry.verdict, "usage": None if entry.usage is None else fields_of(entry.usage),
        "kept_ms": entry.kept_ms, "expires_ms": entry.expires_ms, "meaning": told,
    }  # fmt: skip
    return orjson.dumps(head) + b"\n" + vector + entry.body


def _entry(answer: bytes) -> CacheEntry:
    """The answer that `_written` wrote."""
    line, _, rest = answer.partition(b"\n")
    head: Any = orjson.loads(line)
    meaning = None
    if head["meaning"] is not None:
        context, embedder, size, signature = head["meaning"]
        vector = np.frombuffer(rest[:size], "<f4").astype(np.float32)
        rest = rest[size:]
        meaning = Meaning(bytes.fromhex(context), embedder, vector, decode_signature(signature.encode()))
    return CacheEntry(
        key=bytes.fromhex(head["key"]), body=rest, content_type=head["content_type"], status=head["status"],
        named=head["named"], verdict=head["verdict"],
        usage=None if head["usage"] is None else read_fields(Usage, head["usage"]),
        kept_ms=head["kept_ms"], expires_ms=head["expires_ms"], meaning=meaning,
    )  # fmt: skip
