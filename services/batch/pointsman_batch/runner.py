"""Takes batches that have no runner, runs them, and deletes what has expired."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from nats.errors import Error as NatsError

from pointsman_batch.adapters.batches import SeenBatch
from pointsman_batch.batch_run import LEASE_S, BatchRun, LeaseLost
from pointsman_batch.run_tools import RunTools
from pointsman_contracts.batch import ENDED, BatchRecord
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 0.5
JANITOR_S: Final = 30.0
_DAY_MS: Final = 86_400_000

_log = Log("runner")


class Runner:
    """Runs batches of this replica."""

    def __init__(self, tools: RunTools, at_once: int, now_ms: Callable[[], int]) -> None:
        self._tools: Final = tools
        self._at_once: Final = at_once
        self._now_ms: Final = now_ms
        self._runs: Final[dict[str, BatchRun]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._wake: Final = asyncio.Event()

    def take_change(self, seen: SeenBatch) -> None:
        """A record came."""
        run = self._runs.get(seen.record.id)
        if run is not None:
            run.take_record(seen.record)
        elif not seen.record.runner and seen.record.status not in ENDED:
            self._wake.set()

    async def run_batches(self) -> None:
        """Take batches for ever."""
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            for seen in self._free():
                if len(self._runs) >= self._at_once:
                    break
                try:
                    await self._take(seen)
                except (NatsError, TimeoutError, OSError) as error:
                    _log.warning("batch_not_taken", batch=seen.record.id, problem=type(error).__name__)

    async def run_deletion(self) -> None:
        """Delete expired files and batches for ever."""
        problem = ""
        while True:
            await asyncio.sleep(JANITOR_S)
            try:
                await self._delete_expired()
                problem = ""
            except (NatsError, TimeoutError, OSError) as error:
                if (name := type(error).__name__) != problem:
                    problem = name
                    _log.warning("not_deleted", problem=name)

    async def close(self) -> None:
        """Stop running; other replicas take the batches at once."""
        runs = [*self._runs.values()]
        await end_all(self._tasks)
        await asyncio.gather(*(run.release() for run in runs))

    def _free(self) -> list[SeenBatch]:
        """Batches that have no living runner, the oldest first."""
        now = time.monotonic()
        return sorted(
            (
                seen
                for seen in self._tools.batches.known.values()
                if seen.record.status not in ENDED
                and seen.record.id not in self._runs
                and (not seen.record.runner or now - seen.at > LEASE_S)
            ),
            key=lambda seen: (seen.record.created_ms, seen.record.id),
        )

    async def _take(self, seen: SeenBatch) -> None:
        instance = self._tools.instance

        def taken(record: BatchRecord) -> BatchRecord | None:
            if record.status in ENDED or (record.runner, record.beat) != (seen.record.runner, seen.record.beat):
                return None
            return replace(record, runner=instance, beat=record.beat + 1)

        record = await self._tools.batches.change_batch(seen.record.id, taken)
        if record is None or record.runner != instance:
            return
        if seen.record.runner:
            self._tools.metrics.taken_over.inc()
            _log.warning("batch_taken_over", batch=record.id, former=seen.record.runner)
        run = self._runs[record.id] = BatchRun(self._tools, record, self._now_ms)
        task = asyncio.create_task(self._run(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: BatchRun) -> None:
        try:
            await run.run()
        except LeaseLost:
            _log.warning("lease_lost", batch=run.batch)
        except Exception as error:  # noqa: BLE001 - the other batches go on, and another try comes
            _log.error("run_failed", error, batch=run.batch)
            await asyncio.sleep(LOOK_S)
        finally:
            del self._runs[run.batch]

    async def _delete_expired(self) -> None:
        tools, now_ms = self._tools, self._now_ms()
        read = {record.input_file for record in tools.batches.list_batches() if record.status not in ENDED}
        for file in tools.files.list_files():
            if file.expires_ms is not None and file.expires_ms <= now_ms and file.id not in read:
                await tools.files.delete_file(file.id)
        oldest = now_ms - round(tools.keep_days * _DAY_MS)
        for record in tools.batches.list_batches():
            if record.ended_ms is not None and record.ended_ms <= oldest:
                await tools.results.delete_results(record.id)
                await tools.batches.delete_batch(record.id)
