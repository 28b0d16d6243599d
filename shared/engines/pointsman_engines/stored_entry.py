"""Keeps one worker's entry in the bucket of registered workers, for services that start; no request needs it."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from nats.errors import Error as NatsError

from pointsman_contracts.subjects import kv_key
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerRegistration
from pointsman_engines.report import ReportedWorker
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.telling.logs import Log

RETRY_S: Final = 0.5
REMOVE_TIMEOUT_S: Final = 2.0

_log = Log("registration")


class RegistrationEntries(Protocol):
    """The store of registrations; a `pointsman_runtime.jetstream.buckets.Bucket` is one."""

    async def put(self, key: str, value: bytes) -> int:
        """Write. Raises nats errors and TimeoutError."""
        ...

    async def delete(self, key: str) -> None:
        """Remove. Raises what `put` raises."""
        ...


class StoredEntry:
    """Writes what `wanted()` gives, on every change and often enough that it doesn't expire."""

    def __init__(
        self, entries: RegistrationEntries, worker: ReportedWorker, wanted: Callable[[], WorkerRegistration | None]
    ) -> None:
        self.problem: str | None = None
        """Why the last write failed; None when it didn't."""
        self._entries: Final = entries
        self._worker: Final = worker
        self._wanted: Final = wanted
        self._key: Final = kv_key(WorkerRegistration, worker.pool, worker.worker)
        self._changed: Final = asyncio.Event()
        self._written = False

    def write_now(self) -> None:
        self._changed.set()

    async def keep_entry(self) -> None:
        """Keep the entry until cancelled."""
        while True:
            self._changed.clear()
            written = await self._write()
            try:
                async with asyncio.timeout(TIMES.announce_s if written else RETRY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def remove_entry(self) -> None:
        """Remove the entry. When that fails, it expires."""
        if not self._written:
            return
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT_S):
                await self._entries.delete(self._key)
        except (NatsError, OSError, TimeoutError) as error:
            _log.warning("registration_not_removed", worker=self._worker.worker, reason=jetstream_words(error))

    async def _write(self) -> bool:
        wanted = self._wanted()
        if wanted is None:
            return False
        try:
            async with asyncio.timeout(TIMES.worker_gone_s):
                await self._entries.put(self._key, wanted.encode())
        except (NatsError, OSError, TimeoutError) as error:
            reason = jetstream_words(error)
            if self.problem is None:
                _log.warning(
                    "registration_not_stored",
                    worker=self._worker.worker,
                    reason=reason,
                    hint="logged once; the worker serves, but services that start now learn of it later",
                )
            self.problem = reason
            return False
        if self.problem is not None:
            _log.info("registration_stored_again", worker=self._worker.worker)
        self.problem = None
        self._written = True
        return True
