"""Records the pools whose configuration asks for it. No request waits for it: what the disk doesn't take is dropped,
counted, and named in the log."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pointsman_core.config.flight import FlightSettings
from pointsman_flight.salt import Salt, kept_in
from pointsman_runtime.telling.logs import Log
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index.recency import Promise
from pointsman_scheduler.flight.backlog import NOTHING, Drained, Encoded
from pointsman_scheduler.flight.freezing import freeze
from pointsman_scheduler.flight.metrics import FlightMetrics
from pointsman_scheduler.flight.segments import Beginning, Packed, SegmentLog
from pointsman_scheduler.flight.tap import Tap

TURN_S: Final = 1.0
"""Seconds that a killed scheduler may miss at its log's end. A turn takes some 0.5 ms, however little it writes."""
RETRY_S: Final = 5.0
"""After the disk refused a write."""
MOST_BYTES: Final = 16 * 2**20
"""Records that wait for the disk: a quarter of a minute of a busy pool."""

BLOCK_FIGURES: Final = 2
"""How many figures, from the first on, count blocks of the index."""
COUNTED_APART: Final = 1.0
"""That reported and predicted blocks are counted apart. Logs of earlier versions don't have this figure, and count a
block once that is both."""

_log = Log("flight")


class _Turn(NamedTuple):
    """The records to write."""

    log: SegmentLog
    encoded: Encoded
    write: Callable[[Packed], None]
    """Work for the thread, with these records."""
    promises: Sequence[Promise] = ()
    """Parts of a snapshot that the event loop copies before, one after the other."""


class _Recording:
    """One pool's recording."""

    def __init__(self, tap: Tap, log: SegmentLog, clock: Callable[[], float], *, empty: bool) -> None:
        self.tap: Final = tap
        self.log: Final = log
        self.used: tuple[Policy, ...] = ()
        """The policies in force, as the log knows."""
        self._clock: Final = clock
        self._first: Beginning | None = Beginning(time.time_ns(), clock(), None, ()) if empty else None
        self._retry_at = float("-inf")
        self._gap = ""
        self._missed = 0
        self._in_hand = 0
        """Notes that the thread has."""

    def turn(self, now: float) -> _Turn | None:
        """One turn of the event loop."""
        log = self.log
        if not log.is_open:
            if now < self._retry_at:
                return None
            start, self._first = self._first or self._snapshot(), None
            return _Turn(log, NOTHING, partial(self._begin, start), _promises(start))
        drained = self._drained()
        encoded = drained.encoded
        self._in_hand = encoded.inputs
        if drained.dropped:
            self._gap, self._missed = drained.problem, drained.dropped
            return _Turn(log, encoded, partial(self._stop, drained.dropped))
        if log.is_due(now):
            start = self._snapshot()
            return _Turn(log, encoded, partial(self._rotate, start), _promises(start))
        return _Turn(log, encoded, log.write) if encoded.inputs else None

    def failed(self, reason: str, now: float) -> None:
        """The thread's work failed."""
        lost = self.tap.backlog.take_records()
        self._gap, self._missed = reason, self._missed + self._in_hand + lost.encoded.inputs + lost.dropped
        self._retry_at = now + RETRY_S
        self.tap.backlog.close()
        self.log.abandon_segment()

    def last(self) -> Sequence[_Turn]:
        """The records to write at the end."""
        self.tap.detach()
        drained = self._drained()
        stop = _Turn(self.log, drained.encoded, partial(self._stop, drained.dropped))
        return (stop,) if self._first is None else (_Turn(self.log, NOTHING, partial(self._begin, self._first)), stop)

    def _snapshot(self) -> Beginning:
        pool, maker = self.tap.pool, self.log.maker
        used = tuple([maker.number_of(policy) for policy in pool.policies])
        frozen = freeze(pool, maker.policies)
        if not self.log.is_open:
            maker.note_workers(pool)
            unheard = self.tap.backlog.take_records().dropped
            # The first snapshot contains the inputs before it; after a gap, a replay can't know how it was decided.
            self._missed += unheard if self._gap else 0
            self.tap.backlog.open()
        gap, self._gap, missed, self._missed = self._gap, "", self._missed, 0
        return Beginning(
            unix_ns=time.time_ns(), monotonic=self._clock(), frozen=frozen, used=used, gap=gap, missed=missed
        )

    def _drained(self) -> Drained:
        self.tap.backlog.check(figures(self.tap.pool))
        return self.tap.backlog.take_records()

    def _begin(self, start: Beginning, _packed: Packed) -> None:
        self.log.begin_segment(start)

    def _rotate(self, start: Beginning, packed: Packed) -> None:
        self.log.write(packed)
        self.log.end_segment("rotated")
        self.log.begin_segment(start)

    def _stop(self, dropped: int, packed: Packed) -> None:
        self.log.write(packed)
        self.log.end_segment("gap" if dropped else "closed", dropped)


def _promises(start: Beginning) -> Sequence[Promise]:
    return () if start.frozen is None else start.frozen.promises


def figures(pool: PoolScheduler) -> tuple[float, ...]:
    """The figures of `StateChecked`."""
    index = pool.index.memory()
    books, binder = pool.books, pool.binder
    return (
        index.holdings, index.blocks, index.open_requests, len(books), len(binder), pool.fleet.epoch, COUNTED_APART,
    )  # fmt: skip


class FlightRecorder:
    """Records all pools of a scheduler."""

    def __init__(
        self,
        directory: Path,
        salt: str | None,
        product: str,
        pools: Callable[[], Iterable[PoolScheduler]],
        metrics: FlightMetrics,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`salt`: the deployment's key for renaming hashes; None for one that is kept in the directory."""
        self._directory: Final = directory
        self._secret: Final = salt
        self._product: Final = product
        self._pools: Final = pools
        self._metrics: Final = metrics
        self._most_bytes: Final = most_bytes
        self._clock: Final = clock
        self._salt: Salt | None = None
        self._settings: Mapping[str, FlightSettings] = {}
        self._recordings: dict[str, _Recording] = {}
        self._ending: list[_Turn] = []
        self._stopped: set[str] = set()
        """Pools whose log has stopped, for whatever reason; logged once."""
        self._thread: ThreadPoolExecutor | None = None
        self._begun: asyncio.Task[None] | None = None

    def apply_settings(self, settings: Mapping[str, FlightSettings | None]) -> None:
        """A revision came into force. Call it before the pools get to know the revision."""
        self._settings = {pool: flight for pool, flight in settings.items() if flight is not None}
        for pool, recording in list(self._recordings.items()):
            if self._settings.get(pool) != recording.log.settings:
                del self._recordings[pool]
                self._ending += recording.last()
        for pool in self._pools():
            if pool.pool in self._settings and pool.pool not in self._recordings:
                self._record(pool, empty=False)

    def record_pool(self, pool: PoolScheduler) -> None:
        """A pool was made; it knows nothing yet."""
        if pool.pool in self._settings:
            self._record(pool, empty=True)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(TURN_S)
            # A turn ends once it has begun: what it took from the backlog is nowhere else.
            self._begun = asyncio.create_task(self.write_turn())
            await asyncio.shield(self._begun)

    async def write_turn(self) -> None:
        """Write what was noted since the last turn."""
        ending, self._ending = self._ending, []
        for last in ending:
            try:
                await self._write(last)
            except OSError as error:
                _log.error("flight_not_ended", error)
        for name, recording in list(self._recordings.items()):
            turn = recording.turn(self._clock())
            if turn is None:
                continue
            before_inputs, before_bytes = recording.log.inputs, recording.log.bytes
            try:
                await self._write(turn)
            except OSError as error:
                self._failed(name, recording, error)
            else:
                self._tell(name, recording)
            metrics = self._metrics.for_pool(name)
            metrics.inputs(recording.log.inputs - before_inputs)
            metrics.bytes(recording.log.bytes - before_bytes)

    async def close(self) -> None:
        """Write the rest, and end all segments. Cancel `run` before."""
        if self._begun is not None:
            await asyncio.wait((self._begun,))
        for name, recording in list(self._recordings.items()):
            del self._recordings[name]
            self._ending += recording.last()
        await self.write_turn()
        if self._thread is not None:
            self._thread.shutdown()

    def _record(self, pool: PoolScheduler, *, empty: bool) -> None:
        try:
            salt = self._salt = self._salt or self._made_salt()
        except OSError as error:
            _log.error("flight_not_begun", error, pool=pool.pool, directory=str(self._directory))
            return
        log = SegmentLog(
            pool=pool,
            settings=self._settings[pool.pool],
            directory=self._directory,
            salt=salt,
            product=self._product,
            most=self._most_bytes,
        )
        tap = Tap(pool, log.maker)
        tap.attach()
        if empty:
            tap.backlog.open()
        self._recordings[pool.pool] = _Recording(tap, log, self._clock, empty=empty)

    def _made_salt(self) -> Salt:
        return kept_in(self._directory) if self._secret is None else Salt(self._secret.encode())

    async def _write(self, turn: _Turn) -> None:
        for promise in turn.promises:
            promise.keep()
            await asyncio.sleep(0)
        frames: list[bytes] = []
        for part in turn.encoded.parts:
            frames.append(turn.log.pack_records(part))
            await asyncio.sleep(0)
        packed = Packed(b"".join(frames), turn.encoded.inputs)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "flight")
        await asyncio.get_running_loop().run_in_executor(self._thread, turn.write, packed)

    def _failed(self, pool: str, recording: _Recording, error: OSError) -> None:
        reason = (error.strerror or type(error).__name__).lower()
        recording.failed(reason, self._clock())
        if pool not in self._stopped:
            self._stopped.add(pool)
            self._metrics.for_pool(pool).gaps()
            _log.error("flight_stopped", error, pool=pool, directory=str(self._directory))

    def _tell(self, pool: str, recording: _Recording) -> None:
        if recording.log.is_open and pool in self._stopped:
            self._stopped.discard(pool)
            _log.info("flight_resumed", pool=pool)
