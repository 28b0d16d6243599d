"""The books of a pool: which request is on which worker, one entry for each request and leg, from every scheduler; and
the state that follows them: prefix entries, workers' standing, plugins that learn.

Every operation may be repeated, come late, or come for a request that is unknown or long over, and leaves the books
right. An ended request is remembered for a while, because a peer's reservation may arrive after the edge's report that
the request is over: they travel on different subjects.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.cascade import ESCALATED
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ReservationChange
from pointsman_delay.formula import new
from pointsman_plugins.scheduling.arrays import Blocks
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.points import ResponseObserver
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_plugins.scheduling.worker import NEVER, Hold, Worker
from pointsman_scheduler.domain.doubted_workers import DOUBTS
from pointsman_scheduler.domain.outlier_detection import OutlierDetection
from pointsman_scheduler.domain.prefix_index import PrefixIndex

REMEMBER_ENDED_S: Final = 10.0
_FORGOTTEN_TOGETHER: Final = 64
"""Looking for the oldest end at each end would cost a fifth of taking a reservation off."""
ASK_AFTER_S: Final = 60.0
"""A reservation this old is queried at its edge, and again after as long. Age alone never drops one, since a request
may well take longer (llm-d-router issue 2295)."""
SURPLUS_AFTER_S: Final = 2.0
"""An engine must report fewer requests than the books hold for this long before the books are checked early."""
ASK_AGAIN_S: Final = 5.0
PEERS_TIMES: Final = 5.0
"""A scheduler asks about its own reservations first, and its peers after so many times as long: it may have released
one, and the release and the end of the request may be lost on their way to a peer."""

Disproved = tuple[str, str, str]
"""An attempt that refused a request as the client's fault, which a peer then answered: worker, outcome, and the name of
the model or adapter."""


class _End(NamedTuple):
    at: float
    """Monotonic."""
    told_ms: int


class Ledger:
    """Records the course of each request."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        self.set_observers(())
        self._fleet: Final = fleet
        self._settle: Final = fleet.settle
        self._index: Final = index
        self.outliers: Final = OutlierDetection(fleet)
        self._holds: dict[RequestKey, tuple[Hold, ...]] = {}
        # A plain dictionary walks past all removed keys to find its first.
        self._ended: OrderedDict[RequestKey, _End] = OrderedDict()
        """With some that ended too long ago."""
        self._ended_at = NEVER
        """When the last one ended."""

    def __len__(self) -> int:
        """Requests on the books."""
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        for holds in self._holds.values():
            yield from holds

    def find_reservation(self, request: RequestKey, leg: str = "") -> Hold | None:
        """The reservation of a request for one leg, or None."""
        holds = self._holds.get(request)
        if holds is not None:
            for hold in holds:
                if hold.change.leg == leg:
                    return hold
        return None

    def reservations_of(self, request: RequestKey) -> tuple[Hold, ...]:
        return self._holds.get(request, ())

    def ended(self, request: RequestKey) -> bool:
        """Whether the request ended a short while ago."""
        end = self._ended.get(request)
        return end is not None and self._ended_at - end.at <= REMEMBER_ENDED_S

    def ended_before(self, request: RequestKey, received_ms: int) -> bool:
        """Whether the request that its edge received at `received_ms` is over: its end was reported before its journey
        came. A later request of the same id isn't. Times by the edge's clock, in Unix milliseconds."""
        end = self._ended.get(request)
        return end is not None and received_ms < end.told_ms and self._ended_at - end.at <= REMEMBER_ENDED_S

    def set_observers(self, observers: Iterable[ResponseObserver]) -> None:
        """From now on notify these plugins, each once."""
        # A method that a plugin doesn't override is empty: requests don't call it.
        each, base = tuple(dict.fromkeys(observers)), ResponseObserver
        self._on_chosen = tuple([one.chosen for one in each if type(one).chosen is not base.chosen])
        self._on_started = tuple([one.started for one in each if type(one).started is not base.started])
        self._on_failed = tuple([one.failed for one in each if type(one).failed is not base.failed])
        self._on_completed = tuple([one.completed for one in each if type(one).completed is not base.completed])
        self._on_gone = tuple([one.gone for one in each if type(one).gone is not base.gone])

    def put(self, hold: Hold, now: float, blocks: Blocks | None = None, matched: int = 0) -> None:
        """Put a reservation on the books. There must be none for this request and leg. `blocks` are the hold's, where
        the caller has them as an array; `matched` as in `PrefixIndex.write`."""
        request, worker, books = hold.request, hold.worker, self._holds
        others = books.get(request)
        books[request] = (hold,) if others is None else (*others, hold)
        self._ended.pop(request, None)
        worker.put(hold)
        self._settle(worker)
        if blocks is None:
            blocks = np.frombuffer(hold.change.blocks, dtype="<u8")
        self._index.write(
            life=worker.life,
            blocks=blocks,
            now=now,
            request=hold.key,
            told=hold.change.blocks_precise and worker.tells,
            matched=matched,
        )
        self.outliers.put(hold, now, others)
        for notify in self._on_chosen:
            notify(hold, now)

    def end_earlier_decisions(self, request: ScheduleRequest, now: float) -> None:
        """Take off the books what an earlier decision about the request reserved: its edge asks for another one, and
        the `AttemptFailed` of the engine that it left hasn't come yet."""
        for hold in self.reservations_of(request.key):
            if hold.change.decision < request.facts.decision:
                self.take_off(hold, now, answered=bool(request.facts.escalated))

    def started(
        self,
        request: RequestKey,
        worker: str,
        ttft_ms: float,
        now: float,
        handed_ms: float | None = None,
        *,
        decision: int = 1,
    ) -> None:
        """The first byte of the answer came from `worker`, `ttft_ms` after the edge sent the request there, and
        `handed_ms` after another engine had computed its prompt; None where none did, or nothing tells when.
        `decision`: the one that chose the worker."""
        hold = self.find_reservation(request)
        if hold is not None and hold.change.decision > decision:
            return
        if handed_ms is not None:
            for leg in self.reservations_of(request):
                if leg.change.leg:
                    leg.handed_ms = handed_ms
        if hold is not None and hold.worker.name != worker:  # its AttemptFailed was lost
            hold = self._move(hold, worker, now)
        if hold is None:
            return
        if not hold.confirmed:
            self.confirm(hold, now)
            self.outliers.started(hold, now)
            for notify in self._on_started:
                notify(hold, now, ttft_ms)

    def confirm(self, hold: Hold, now: float) -> None:
        """The answer began."""
        if hold.confirmed:
            return
        worker = hold.worker
        worker.confirm(hold)
        self._settle(worker)
        self._index.confirm(hold.key, now)
        legs = self._holds[hold.request]
        if len(legs) > 1:
            for leg in legs:
                if leg is not hold:  # its prefill load goes when the first byte comes
                    if not leg.confirmed:
                        leg.worker.confirm(leg)
                    self._index.confirm(leg.key, now)
                    self.take_off(leg, now)

    def failed(self, event: AttemptFailed, now: float) -> None:
        """An attempt to reach a worker failed; the edge retries at `next_worker`. After a failed leg the endpoint that
        answers does that part of the work itself."""
        worker = self._fleet.find(event.worker)
        hold = self.find_reservation((event.source, event.request_id), event.leg)
        if hold is not None and (hold.worker.name != event.worker or hold.change.decision > event.decision):
            hold = None
        if worker is not None and event.boot_id in ("", worker.registration.boot_id):
            self.outliers.failed(worker, event.outcome, event.status, hold, now)
        if hold is not None and event.outcome == ESCALATED:
            # It has answered: its cache has the prompt.
            self.take_off(hold, now, answered=True)
        elif hold is not None:
            for notify in self._on_failed:
                notify(hold, now)
            self._move(hold, event.next_worker, now, stalled=event.outcome == "stalled")
            answering = self.find_reservation(hold.request) if event.leg else None
            if answering is not None and not answering.confirmed:
                self._move(answering, answering.worker.name, now)

    def completed(
        self,
        request: RequestKey,
        now: float,
        ok: bool,
        output_tokens: int | None = None,
        duration_ms: float | None = None,
        worker: str | None = None,
        told_ms: int = 0,
        ending: str = "",
        disproved: Sequence[Disproved] = (),
    ) -> None:
        """The request is over: late reports of its reservations are ignored. `ok`: its answer was complete, from
        `worker` where that is known. `told_ms`: when its edge reported the end, by the edge's clock; 0 when it
        didn't. `ending`: `cut_off` when its worker broke the answer off, `unsure` when that or the client did, one of
        `DOUBTS`, `client_error` for an answer that shows nothing about its worker; else empty. `disproved`: attempts
        that refused it before a peer answered."""
        for name, outcome, model in disproved:
            refusing = self._fleet.find(name)
            if refusing is not None:
                self.outliers.record_disproved_refusal(refusing, outcome, model, now)
        legs = self._holds.get(request, ())
        if ok and legs and worker is not None:
            first = self.find_reservation(request) if legs[0].change.leg else legs[0]
            if first is not None and first.worker.name != worker:  # its AttemptFailed was lost
                self._move(first, worker, now)
                legs = self.reservations_of(request)
        several = len(legs) > 1
        for hold in legs:
            # The first byte of the answer may have taken this leg off.
            if several:
                if self.find_reservation(request, hold.change.leg) is not hold:
                    continue
                if ok:
                    self.confirm(hold, now)
            if not hold.change.leg and worker in (None, hold.worker.name):
                if ending == "cut_off":
                    self.outliers.failed(hold.worker, ending, None, hold, now)
                elif ending == "unsure":
                    self.outliers.record_unknown_end(hold, now)
                elif ending in DOUBTS:
                    self.outliers.record_doubt(hold, ending, now)
            if ok:
                hold.answer_tokens = output_tokens
                if not ending and not hold.change.leg:
                    self.outliers.ended(hold, now, begun=hold.confirmed)
                for notify in self._on_completed:
                    notify(hold, now, output_tokens, duration_ms)
            self.take_off(hold, now, answered=ok)
        self._end(request, now, told_ms)

    def add_answer(self, request: RequestKey, worker: str, blocks: bytes, now: float) -> None:
        """The request's answer came from `worker`, and these are the hashes of its blocks. No-op for a request that
        isn't on the books there. `completed` follows."""
        hold = self.find_reservation(request)
        if hold is None or hold.worker.name != worker:
            return
        change = hold.change
        if not (change.blocks_precise and hold.worker.tells):
            prompt: list[int] = np.frombuffer(change.blocks, dtype="<u8").tolist()
            answer: list[int] = np.frombuffer(blocks, dtype="<u8").tolist()
            self._index.add_answer(hold.worker.life, prompt, answer, now)

    def take_off(self, hold: Hold, now: float, *, answered: bool = False) -> None:
        """Take a reservation off the books, and its prefix entries too unless the answer began: the request continues
        elsewhere or has ended. `answered`: its whole answer came; the beginning of one that isn't streamed wasn't
        reported."""
        request, worker, books = hold.request, hold.worker, self._holds
        legs = books.pop(request)
        if len(legs) > 1:
            books[request] = tuple([other for other in legs if other is not hold])
        worker.take_off(hold, now, answered)
        self._settle(worker)
        if not hold.confirmed:
            if answered:
                hold.confirmed = True
                self._index.confirm(hold.key, now)
            else:
                self._index.retract(hold.key, now)
        for notify in self._on_gone:
            notify(hold, now)

    def drop_requests_on(self, worker: Worker, now: float) -> None:
        """A worker's life ended: drop every request on it."""
        for hold in tuple(worker.holds.values()):
            self.take_off(hold, now)
        self._index.forget(worker.life)

    def edge_gone(self, edge: str, now: float) -> int:
        """An edge died, and its connections to engines with it. Returns how many of its requests were open."""
        lost = {hold.request for hold in self if hold.change.edge == edge}
        for request in lost:
            self.completed(request, now, ok=False)
        return len(lost)

    def apply(self, change: ReservationChange, scheduler: str, now: float) -> bool:
        """Apply another scheduler's change. False when it is ignored: late, overruled by a later attempt, or about an
        unknown worker."""
        if change.op == "reserve":
            return self._reserve_for(change, scheduler, now)
        request = (change.edge, change.request_id)
        hold = self.find_reservation(request, change.leg)
        if hold is None or hold.worker.name != change.worker:
            return False
        if change.op == "confirm":
            self.confirm(hold, now)
        else:
            self.take_off(hold, now)
            if change.op == "release":
                self._end(request, now, 0)
        return True

    def doubtful(self, now: float, mine: Callable[[str], bool]) -> dict[str, list[str]]:
        """Ids of requests to query at their edges, by edge: old ones, and those that the engine doesn't seem to have.
        Reservations of schedulers that aren't `mine` to look after come later; each is named again after a while."""
        questions: dict[str, list[str]] = {}
        for hold in self:
            age, since_asked = now - hold.at, now - hold.asked_at
            if age < SURPLUS_AFTER_S:
                continue
            times = 1.0 if mine(hold.scheduler) else PEERS_TIMES
            surplus = now - hold.worker.surplus_since if hold.worker.surplus_since != NEVER else 0.0
            if min(surplus, age) >= SURPLUS_AFTER_S * times:
                due = since_asked >= ASK_AGAIN_S * times
            else:
                due = min(age, since_asked) >= ASK_AFTER_S * times
            if due:
                hold.asked_at = now
                questions.setdefault(hold.change.edge, []).append(hold.change.request_id)
        return questions

    def _reserve_for(self, change: ReservationChange, scheduler: str, now: float) -> bool:
        worker = self._fleet.find(change.worker)
        request = (change.edge, change.request_id)
        if worker is None or worker.registration.boot_id != change.boot_id:
            return False
        if self.ended(request):
            if change.session is not None:
                # A short answer is over before its reservation comes: its session is bound nevertheless.
                self._note_ended(Hold(change, worker, now, scheduler), now)
            return False
        hold = self.find_reservation(request, change.leg)
        if hold is not None:
            # Replicas receive each other's changes in different orders; all keep the later attempt, then the greater
            # name.
            held = hold.change
            if held.decision == change.decision and hold.worker is worker:
                return False
            if (held.decision, held.attempt, hold.scheduler) > (change.decision, change.attempt, scheduler):
                return False
            self.take_off(hold, now)
        self.put(Hold(change, worker, now, scheduler), now)
        return True

    def _note_ended(self, hold: Hold, now: float) -> None:
        for notify in self._on_chosen:
            notify(hold, now)
        for notify in self._on_gone:
            notify(hold, now)

    def _end(self, request: RequestKey, now: float, told_ms: int) -> None:
        ended = self._ended
        ended[request] = new(_End, (now, told_ms))
        self._ended_at = now
        if not len(ended) % _FORGOTTEN_TOGETHER:
            while now - next(iter(ended.values())).at > REMEMBER_ENDED_S:
                ended.popitem(last=False)

    def _move(self, hold: Hold, worker: str | None, now: float, *, stalled: bool = False) -> Hold | None:
        """Move the request to another worker, or take it off the books. `stalled`: because it waited for too long."""
        self.take_off(hold, now)
        target = self._fleet.find(worker) if worker is not None else None
        if target is None or not target.present:
            return None
        # Don't look up how much of the prompt the other worker holds: as a fallback, it holds less than the first.
        boot_id, tokens = target.registration.boot_id, hold.change.prompt_tokens
        change = replace(hold.change, worker=target.name, boot_id=boot_id, uncached_tokens=tokens)
        moved = replace(
            hold, change=change, worker=target, at=now, confirmed=False, asked_at=NEVER, stalled=False,
            moved=stalled or hold.moved, asked_to_move=0,
        )  # fmt: skip
        self.put(moved, now)
        return moved
