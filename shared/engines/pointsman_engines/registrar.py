"""Keeps one worker's entry in the bucket of registered workers alive."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from nats.errors import Error as NatsError

from pointsman_contracts.subjects import kv_key
from pointsman_contracts.worker import WorkerRegistration
from pointsman_engines.report import Worker, registration_of
from pointsman_engines.status import EngineStatus
from pointsman_runtime.errors import jetstream_words
from pointsman_runtime.logs import Log
from pointsman_runtime.stores import WORKERS_TTL_S

RENEW_S: Final = WORKERS_TTL_S / 3
RETRY_S: Final = 0.5
LEAVE_TIMEOUT_S: Final = 2.0

_log = Log("registration")


class Entries(Protocol):
    """Where registrations are written; a `pointsman_runtime.buckets.Bucket` is one."""

    async def put(self, key: str, value: bytes) -> int:
        """Write. Raises nats errors and TimeoutError."""
        ...

    async def delete(self, key: str) -> None:
        """Remove. Raises as `put`."""
        ...


class Registrar:
    """Registers a worker once its engine said what it is, and again on every change and heartbeat.

    `on_registered` is called after each entry that differs from the one before.
    """

    def __init__(
        self, entries: Entries, worker: Worker, *, agent: str, version: str, on_registered: Callable[[], None]
    ) -> None:
        self.problem: str | None = "the engine did not say yet what it is"
        """Why the worker isn't registered; None when it is."""
        self._entries = entries
        self._worker = worker
        self._agent = agent
        self._version = version
        self._on_registered = on_registered
        self._key = kv_key(WorkerRegistration, worker.pool, worker.worker)
        self._status = EngineStatus()
        self._written: WorkerRegistration | None = None
        self._since_ms = time.time_ns() // 1_000_000
        self._changed = asyncio.Event()

    def saw(self, status: EngineStatus) -> None:
        """Take in what the watch saw."""
        before, self._status = self._status, status
        if before.facts is not status.facts or before.boot_id != status.boot_id:
            self._changed.set()

    def renew(self) -> None:
        """Write the entry now: it may have been lost."""
        self._changed.set()

    async def run(self) -> None:
        """Keep the entry alive until cancelled."""
        while True:
            self._changed.clear()
            written = await self._write()
            try:
                async with asyncio.timeout(RENEW_S if written else RETRY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def leave(self) -> None:
        """Remove the entry. When that doesn't work it expires by itself."""
        if self._written is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._entries.delete(self._key)
        except (NatsError, OSError, TimeoutError) as error:
            _log.warning("registration_not_removed", worker=self._worker.worker, reason=jetstream_words(error))
        else:
            _log.info("worker_left", pool=self._worker.pool, worker=self._worker.worker)

    async def _write(self) -> bool:
        wanted = registration_of(
            self._worker, self._status, agent=self._agent, version=self._version, registered_ms=self._since_ms
        )
        if wanted is None:
            return False
        try:
            async with asyncio.timeout(WORKERS_TTL_S):
                await self._entries.put(self._key, wanted.encode())
        except (NatsError, OSError, TimeoutError) as error:
            reason = f"the bucket of registered workers does not take the entry: {jetstream_words(error)}"
            if self.problem != reason:
                self.problem = reason
                _log.warning("registration_failed", worker=self._worker.worker, reason=reason)
            return False
        before, self._written = self._written, wanted
        if self.problem is not None or wanted != before:
            self.problem = None
            _log.info(
                "worker_registered",
                pool=wanted.pool,
                worker=wanted.worker,
                engine=wanted.engine,
                boot_id=wanted.boot_id,
                models=", ".join(wanted.models),
            )
            self._on_registered()
        return True
