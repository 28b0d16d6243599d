"""The books of a pool, and the state that follows them: prefix entries, workers' failures, plugins that learn."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from pointsman_contracts.peers import AnyChange
from pointsman_contracts.response import AttemptFailed
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.points import ResponseObserver
from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import NEVER, Hold, Worker
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.prefix_index import PrefixIndex


class Books:
    """Records the course of each request, from every scheduler. Each method accepts repeated and late calls, and calls
    about unknown requests."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        self.ledger: Final = Ledger(fleet.settle)
        self.observers: tuple[ResponseObserver, ...] = ()
        self._fleet: Final = fleet
        self._index: Final = index

    def started(self, request: RequestKey, worker: str, ttft_ms: float, now: float) -> None:
        """The first byte of the answer came from `worker`, `ttft_ms` after the edge sent the request there."""
        hold = self.ledger.of(request)
        if hold is not None and hold.worker.name != worker:  # its AttemptFailed was lost
            hold = self._move(hold, worker, now)
        if hold is None:
            return
        if not hold.confirmed:
            self._confirm(hold, now)
            for observer in self.observers:
                observer.started(hold, now, ttft_ms)
        if hold.worker.standing.failures:
            hold.worker.standing.answered()
            self._fleet.judge(hold.worker)

    def failed(self, event: AttemptFailed, now: float) -> None:
        """An attempt to reach a worker failed; the edge retries at `next_worker`."""
        worker = self._fleet.find(event.worker)
        if worker is not None and event.boot_id in ("", worker.registration.boot_id):
            worker.standing.failed(event.outcome, event.status, now)
            self._fleet.judge(worker)
        hold = self.ledger.of((event.source, event.request_id))
        if hold is not None and hold.worker.name == event.worker:
            for observer in self.observers:
                observer.failed(hold, now)
            self._move(hold, event.next_worker, now)

    def completed(
        self,
        request: RequestKey,
        now: float,
        ok: bool,
        output_tokens: int | None = None,
        duration_ms: float | None = None,
        worker: str | None = None,
        told_ms: int = 0,
    ) -> None:
        """The request is over. `ok`: its answer was complete, from `worker` where that is known. `told_ms` as in
        `Ledger.end`."""
        legs = self.ledger.legs(request)
        first = legs[0] if len(legs) == 1 and not legs[0].leg else self.ledger.of(request)
        if ok and first is not None and worker not in (None, first.worker.name):  # its AttemptFailed was lost
            self._move(first, worker, now)
            legs = self.ledger.legs(request)
        for hold in legs:
            # The first byte of the answer may have taken this leg off.
            if len(legs) > 1 and self.ledger.of(request, hold.leg) is not hold:
                continue
            if ok:
                if not hold.confirmed:  # it wasn't streamed, or its ResponseStarted was lost
                    self._confirm(hold, now)
                if hold.worker.standing.failures:
                    hold.worker.standing.answered()
                    self._fleet.judge(hold.worker)
                for observer in self.observers:
                    observer.completed(hold, now, output_tokens, duration_ms)
            self.take_off(hold, now)
        self.ledger.end(request, now, told_ms)

    def edge_gone(self, edge: str, now: float) -> int:
        """An edge died, and its connections to engines with it. Returns how many of its requests were open."""
        lost = {hold.request for hold in self.ledger if hold.edge == edge}
        for request in lost:
            self.completed(request, now, ok=False)
        return len(lost)

    def apply(self, change: AnyChange, scheduler: str, now: float) -> bool:
        """Apply another scheduler's change. False when it is ignored: late, overruled by a later attempt, or about an
        unknown worker."""
        if change.op == "reserve":
            return self._reserve_for(change, scheduler, now)
        request = (change.edge, change.request_id)
        hold = self.ledger.of(request, change.leg)
        if hold is None or hold.worker.name != change.worker:
            return False
        if change.op == "confirm":
            self._confirm(hold, now)
        else:
            self.take_off(hold, now)
            if change.op == "release":
                self.ledger.end(request, now)
        return True

    def _reserve_for(self, change: AnyChange, scheduler: str, now: float) -> bool:
        worker = self._fleet.find(change.worker)
        request = (change.edge, change.request_id)
        if worker is None or worker.registration.boot_id != change.boot_id or self.ledger.ended(request):
            return False
        hold = self.ledger.of(request, change.leg)
        if hold is not None:
            # Replicas receive each other's changes in different orders; all keep the later attempt, then the greater
            # name.
            if hold.worker is worker or (hold.attempt, hold.scheduler) > (change.attempt, scheduler):
                return False
            self.take_off(hold, now)
        self.put(
            Hold(
                change.request_id,
                worker,
                now,
                leg=change.leg,
                edge=change.edge,
                scheduler=scheduler,
                attempt=change.attempt,
                prompt_tokens=change.prompt_tokens,
                uncached_tokens=change.uncached_tokens,
                output_tokens=change.output_tokens,
                block_tokens=change.block_tokens,
                blocks=change.blocks,
                blocks_precise=change.blocks_precise,
                lora=change.lora,
                session=change.session,
                rank=change.rank,
                streamed=change.streamed,
            ),
            now,
        )
        return True

    def put(self, hold: Hold, now: float, blocks: Blocks | None = None, matched: int = 0) -> None:
        """Put a reservation on the books. There must be none for this request and leg. `blocks` are the hold's, where
        the caller has them as an array; `matched` as in `PrefixIndex.write`."""
        worker = hold.worker
        self.ledger.reserve(hold)
        if blocks is None:
            blocks = np.frombuffer(hold.blocks, dtype="<u8")
        self._index.write(worker.life, blocks, now, hold.key, hold.blocks_precise and worker.tells, matched)
        if worker.standing.demoted:
            worker.standing.tried(now)
            self._fleet.judge(worker)
        for observer in self.observers:
            observer.chosen(hold, now)

    def take_off(self, hold: Hold, now: float) -> None:
        """Take a reservation off the books, and its prefix entries too unless the answer began."""
        self.ledger.withdraw(hold, now)
        if not hold.confirmed:
            self._index.retract(hold.key, now)
        for observer in self.observers:
            observer.gone(hold, now)

    def bury(self, worker: Worker, now: float) -> None:
        """A worker's life ended: drop every request on it."""
        for hold in tuple(worker.holds.values()):
            self.take_off(hold, now)
        self._index.forget(worker.life)

    def notify(self, observers: Iterable[ResponseObserver]) -> None:
        """From now on notify these plugins, each once."""
        self.observers = tuple(dict.fromkeys(observers))

    def _confirm(self, hold: Hold, now: float) -> None:
        if hold.confirmed:
            return
        self.ledger.confirm(hold)
        self._index.confirm(hold.key, now)
        for leg in self.ledger.legs(hold.request):
            if leg is not hold:  # its prefill load goes when the first byte comes
                self.ledger.confirm(leg)
                self._index.confirm(leg.key, now)
                self.take_off(leg, now)

    def _move(self, hold: Hold, worker: str | None, now: float) -> Hold | None:
        """Move the request to another worker, or take it off the books."""
        self.take_off(hold, now)
        target = self._fleet.find(worker) if worker is not None else None
        if target is None or not target.present:
            return None
        # Don't look up how much of the prompt the other worker holds: as a fallback, it holds less than the first.
        moved = replace(
            hold, worker=target, at=now, uncached_tokens=hold.prompt_tokens, confirmed=False, asked_at=NEVER
        )
        self.put(moved, now)
        return moved
