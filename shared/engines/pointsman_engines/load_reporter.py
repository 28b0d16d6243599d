"""Publishes the load of one engine: on change, at most 20 times a second, and at least every `TIMES.report_s`."""

import asyncio
import time

from pointsman_contracts.timing import REPORT_GAP_S, TIMES
from pointsman_contracts.worker import WorkerLoad
from pointsman_engines.drain import Drain
from pointsman_engines.pace import ReportPace
from pointsman_engines.report import ReportedWorker, load_of
from pointsman_engines.status import EngineStatus, differs, state_of
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError


class LoadReporter:
    """Owns one timer; everything happens in the event loop that made it."""

    def __init__(self, bus: Bus, worker: ReportedWorker, *, named: bool = False) -> None:
        """`named`: the pool names the engine, so that a load is published for one that never answered."""
        self.sent = 0
        """Reports that left."""
        self.unsent = 0
        """Reports that were due while the bus was gone."""
        self._bus = bus
        self._worker = worker
        self._named = named
        self._pace = ReportPace(REPORT_GAP_S, TIMES.report_s)
        self._status = EngineStatus()
        self._drain: Drain | None = None
        self._wake_failed = ""
        self._withheld = False
        self._sequence = 0
        self._told: WorkerLoad | None = None
        self._seen: EngineStatus | None = None
        """The status behind the last report."""
        self._timer: asyncio.TimerHandle | None = None

    def saw(self, status: EngineStatus) -> None:
        """Take in what the watch saw."""
        if self._status.boot_id not in ("", status.boot_id):
            # An order to drain is about one life of the engine.
            self._drain = None
        self._status = status
        self._consider()

    @property
    def drain(self) -> Drain | None:
        """The drain that is reported; None for an engine that takes requests."""
        return self._drain

    def set_drain(self, drain: Drain | None) -> None:
        """Report from now on whether the engine drains: a draining engine takes no new requests."""
        if self._drain != drain:
            self._drain = drain
            if self._told is not None and not self._withheld:
                self.publish_load()

    def set_wake_failed(self, why: str) -> None:
        """Report from now on that the engine can't be woken, for this reason; an empty one ends that."""
        if self._wake_failed != why:
            self._wake_failed = why
            if self._told is not None and not self._withheld:
                self.publish_load()

    def withhold(self, *, withheld: bool) -> None:
        """Report nothing while this holds."""
        if withheld == self._withheld:
            return
        self._withheld = withheld
        if withheld:
            self.stop()
        else:
            self.publish_load()

    def publish_load(self) -> None:
        """Publish at once, for a new subscriber that missed the earlier reports."""
        self._pace.note_change(urgent=True)
        self._plan()

    def stop(self) -> None:
        """Fall silent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _consider(self) -> None:
        status, told, seen = self._status, self._told, self._seen
        if not status.boot_id and not (self._named and status.asked):
            return
        state = state_of(status, draining=self._drain is not None)
        if told is None or seen is None or (told.state, told.boot_id) != (state, status.boot_id):
            self._pace.note_change(urgent=True)
        elif differs(seen, status):
            self._pace.note_change()
        elif self._timer is not None:
            return
        self._plan()

    def _plan(self) -> None:
        if self._withheld:
            return
        loop = asyncio.get_running_loop()
        wait = self._pace.due_in(loop.time())
        if self._timer is not None:
            self._timer.cancel()
        if wait > 0:
            self._timer = loop.call_later(wait, self._report)
        else:
            self._report()

    def _report(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        load = load_of(
            self._worker,
            self._status,
            self._sequence + 1,
            draining=None if self._drain is None else self._drain.notice_at(asyncio.get_running_loop().time()),
            wake_failed=self._wake_failed,
            named=self._named,
            now_ms=now_ms,
        )
        if load is None:
            return
        loop = asyncio.get_running_loop()
        self._told, self._seen = load, self._status
        self._sequence = load.sequence
        self._pace.note_report(loop.time())
        try:
            self._bus.publish(load, self._worker.pool, self._worker.worker)
            self.sent += 1
        except BusError:
            self.unsent += 1  # the runtime reports a lost bus; another report is due soon
        self._timer = loop.call_later(self._pace.due_in(loop.time()), self._report)
