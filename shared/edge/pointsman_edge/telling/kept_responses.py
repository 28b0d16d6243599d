"""Where edges write down which engine keeps a response: a bucket that all of them read."""

import asyncio
import hashlib
from typing import Final, Protocol

from nats.errors import Error as NatsError

from pointsman_contracts.kept_response import KeptResponse
from pointsman_contracts.message import MalformedMessage
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

LOOKS_S: Final = (0.0, 0.03, 0.07, 0.2)
"""Seconds before each look: a client may continue a response a moment before another edge has written it down."""
ANSWER_WITHIN_S: Final = 1.0
"""A bucket that takes longer counts as unreachable, and the request isn't held for it."""
MOST_WRITES: Final = 1024
"""Writes that are under way at once; further ones are dropped."""

_log = Log("kept-responses")


class ResponseBucket(Protocol):
    """The calls of `Bucket` that this needs."""

    async def get(self, key: str) -> Entry | None:
        """Read a key."""
        ...

    async def put(self, key: str, value: bytes) -> int:
        """Write a key."""
        ...


class ResponsesUnreachable(Exception):
    """The bucket can't be read."""


class KeptResponses:
    """Reads and writes the bucket."""

    def __init__(self, bucket: ResponseBucket) -> None:
        self._bucket: Final = bucket
        self._writes: Final[set[asyncio.Task[None]]] = set()
        self.unwritten = 0
        """Responses that only this edge knows, because they couldn't be written."""
        self.unread = 0
        """Looks at the bucket that failed."""

    def keep_response(self, response: str, kept: KeptResponse) -> None:
        """Write an entry, some time later."""
        if len(self._writes) >= MOST_WRITES:
            self._note_unwritten("too many writes are under way")
            return
        task = asyncio.get_running_loop().create_task(self._write(_key(response), kept.encode()))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def read_response(self, response: str) -> KeptResponse | None:
        """The entry of a response; None: no edge has written it, or it is too old. Raises ResponsesUnreachable."""
        key = _key(response)
        for wait_s in LOOKS_S:
            await asyncio.sleep(wait_s)
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    entry = await self._bucket.get(key)
                kept = None if entry is None else KeptResponse.decode(entry.value)
            except (NatsError, TimeoutError, MalformedMessage) as error:
                self.unread += 1
                if self.unread == 1:
                    _log.error("unread", error, hint="further ones are counted alone")
                raise ResponsesUnreachable from error
            if kept is not None:
                return kept
        return None

    async def _write(self, key: str, value: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._bucket.put(key, value)
        except (NatsError, TimeoutError) as error:
            self._note_unwritten(str(error) or type(error).__name__)

    def _note_unwritten(self, problem: str) -> None:
        self.unwritten += 1
        if self.unwritten == 1:
            _log.warning(
                "unwritten", problem=problem, hint="other edges don't know these responses; further ones are counted"
            )


def _key(response: str) -> str:
    return hashlib.sha256(response.encode("utf-8", "surrogatepass")).hexdigest()
