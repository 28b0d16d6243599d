"""Key sets published by issuers of tokens."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

import aiohttp

from pointsman_hosting import outbound
from pointsman_preprocessor.domain.key_sets import KeySet, KeySets, parse_key_set, prepare
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log

TIMEOUT_S: Final = 5.0
LARGEST: Final = 2**20
"""Most bytes of a set."""
FRESH_S: Final = 3600.0
"""A set is read again after this time, whether or not a key was missing."""
FLOOR_S: Final = 10.0
"""Minimum time between two reads, so that tokens with made-up key ids don't cause a storm of them."""

_log = Log("key-sets")


class _Published:
    """One address."""

    def __init__(self) -> None:
        self.private = False
        self.keys: KeySet | None = None
        self.text = b""
        self.tried_s = float("-inf")
        self.read_s = float("-inf")
        self.reading: asyncio.Task[None] | None = None
        self.failing = ""


class PublishedKeys(KeySets):
    """Reads each set when it is first asked for, hourly, and when a token names a key that isn't in it.

    A set that can't be read anew stays in force as it was; that is logged once, and again when it has been read in
    between.
    """

    def __init__(self, *, fresh_s: float = FRESH_S, floor_s: float = FLOOR_S) -> None:
        self._fresh_s: Final = fresh_s
        self._floor_s: Final = floor_s
        self._published: Final[dict[str, _Published]] = {}
        self._sessions: Final[dict[bool, aiohttp.ClientSession]] = {}

    def follow_set(self, url: str, *, private: bool) -> None:
        """Keep a set fresh; see `KeySets.follow_set`."""
        prepare()
        self._published.setdefault(url, _Published()).private = private

    def get(self, url: str) -> KeySet | None:
        """The last read set; see `KeySets.get`."""
        published = self._published.get(url)
        return None if published is None else published.keys

    def refresh_set(self, url: str) -> Awaitable[None] | None:
        """Read a set now; see `KeySets.refresh_set`. Concurrent callers share one read."""
        published = self._published.setdefault(url, _Published())
        if published.reading is None:
            if time.monotonic() - published.tried_s < self._floor_s:
                return None
            self._begin(url, published)
        # One request's timeout must not cancel the read that others wait for.
        return None if published.reading is None else asyncio.shield(published.reading)

    def read_due_sets(self) -> None:
        """Read the due sets. Call about once a second."""
        now = time.monotonic()
        for url, published in self._published.items():
            due = published.read_s + self._fresh_s
            if published.reading is None and now >= max(due, published.tried_s + self._floor_s):
                self._begin(url, published)

    async def close(self) -> None:
        """Cancel pending reads."""
        await end_all(published.reading for published in self._published.values() if published.reading is not None)
        for session in self._sessions.values():
            await session.close()

    def _begin(self, url: str, published: _Published) -> None:
        published.tried_s = time.monotonic()
        published.reading = asyncio.get_running_loop().create_task(self._read(url, published))

    async def _read(self, url: str, published: _Published) -> None:
        try:
            text = await self._fetched(url, private=published.private)
            if text != published.text:
                published.keys = parse_key_set(text)
                published.text = text
                _log.info("key_set_read", url=url, keys=len(published.keys))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            problem = outbound.reason_of(error) if not isinstance(error, ValueError) else str(error)
            if published.failing != problem:
                published.failing = problem
                _log.warning("key_set_unreadable", url=url, problem=problem, in_force=published.keys is not None)
        else:
            published.failing = ""
            published.read_s = time.monotonic()
        finally:
            # Here and not when the task is over: a caller that sees these keys and misses one asks for another read.
            published.reading = None

    async def _fetched(self, url: str, *, private: bool) -> bytes:
        session = self._sessions.get(private)
        if session is None:
            session = self._sessions[private] = aiohttp.ClientSession(
                connector=outbound.connector(private=private), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
            )
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"the answer has status {answer.status}")
            text = await answer.content.read(LARGEST + 1)
            while len(text) <= LARGEST and (more := await answer.content.read(LARGEST + 1 - len(text))):
                text += more
            if len(text) > LARGEST:
                raise ValueError(f"it is longer than {LARGEST} bytes")
            return text
