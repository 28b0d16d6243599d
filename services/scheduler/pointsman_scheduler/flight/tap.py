"""Notes every call that enters a pool's scheduler, with its arguments and its result.

A tap shadows the methods of one pool's objects: a pool without a tap runs none of this. A note refers to values that
don't change any more; some notes later it becomes a record; see `encoding`. It is made when the call is over, since
none of these methods calls another one of them but `Books.edge_gone`, whose calls of `completed` are noted instead of
itself.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from pointsman_contracts.peers import AnyChange
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import Bound, PeerRequest
from pointsman_scheduler.domain.outcome import Outcome
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index.life import Dump
from pointsman_scheduler.flight.encoding import TOO_SLOW, Encoded, NoteEncoder
from pointsman_scheduler.flight.writing import Note, RecordMaker

TAPPED: Final = {
    "pool": ("use", "measure", "register", "remove", "hear", "hear_kv", "sweep", "decide", "bind"),
    "books": ("started", "failed", "completed", "apply"),
    "binder": ("peer", "heard", "cancel", "leave_now"),
    "index": ("dump", "load"),
}
"""The methods that are noted: every one by which something enters from outside."""

AT_ONCE: Final = 24
"""Notes that become records together, those of some eight requests: what they refer to is still in the processor's
cache, and the code that encodes them is loaded once."""


class Drained(NamedTuple):
    """Records since the last call of `drain`."""

    encoded: Encoded
    dropped: int
    """Notes that weren't kept; none was after the first of them."""
    problem: str
    """Why the first one wasn't."""


class Tap:
    """Taps one pool."""

    def __init__(self, pool: PoolScheduler, maker: RecordMaker, most: int) -> None:
        """`most`: bytes of records that are kept until they are drained."""
        self.pool: Final = pool
        self._encoder: Final = NoteEncoder(maker)
        self._notes: list[Note] = []
        self._most: Final = most
        self._room = 0
        self._dropped = 0
        self._problem = ""

    def open(self) -> None:
        """Note from now on."""
        self.drain()
        self._room = self._most

    def close(self) -> None:
        """Note nothing until `open`; count what comes."""
        self._encode()
        self._room = 0

    def check(self, figures: tuple[float, ...]) -> None:
        """Note the state's figures, where something was noted. Where inputs are missing, the state is further than the
        notes."""
        self._encode()
        if self._encoder.inputs and not self._dropped:
            self._encoder.check(figures)

    def drain(self) -> Drained:
        """The notes since the last call."""
        self._encode()
        drained = Drained(self._encoder.take(), self._dropped, self._problem)
        self._dropped, self._problem = 0, ""
        return drained

    def attach(self) -> None:
        """Shadow the pool's methods."""
        pool, put = self.pool, self._put
        books, binder, index = pool.books, pool.binder, pool.index
        shadows: list[tuple[object, dict[str, object]]] = [
            (
                pool,
                {
                    "use": _using(pool.use, put),
                    "measure": _measuring(pool.measure, put),
                    "register": _registering(pool.register, put),
                    "remove": _removing(pool.remove, put),
                    "hear": _hearing(pool.hear, put),
                    "hear_kv": _hearing_kv(pool.hear_kv, put),
                    "sweep": _sweeping(pool.sweep, put),
                    "decide": _deciding(pool.decide, put),
                    "bind": _binding(pool.bind, put),
                },
            ),
            (
                books,
                {
                    "started": _starting(books.started, put),
                    "failed": _failing(books.failed, put),
                    "completed": _completing(books.completed, put),
                    "apply": _applying(books.apply, put),
                },
            ),
            (
                binder,
                {
                    "peer": _peering(binder.peer, put),
                    "heard": _being_heard(binder.heard, put),
                    "cancel": _cancelling(binder.cancel, put),
                    "leave_now": _leaving(binder.leave_now, put),
                },
            ),
            (index, {"dump": _dumping(index.dump, put), "load": _loading(index.load, put)}),
        ]
        for place, methods in shadows:
            for name, method in methods.items():
                setattr(place, name, method)

    def detach(self) -> None:
        """Give the pool its own methods back."""
        self.close()
        places = {"pool": self.pool, "books": self.pool.books, "binder": self.pool.binder, "index": self.pool.index}
        for place, names in TAPPED.items():
            for name in names:
                delattr(places[place], name)

    def _put(self, note: Note) -> None:
        if not self._room:
            self._drop(TOO_SLOW, 1)
            return
        notes = self._notes
        notes.append(note)
        if len(notes) >= AT_ONCE:
            self._encode()

    def _encode(self) -> None:
        """Make records of the notes."""
        notes, self._notes = self._notes, []
        done, problem = self._encoder.put(notes, self._room)
        if done < len(notes):
            # What follows a missing input can't be replayed: nothing more is noted until the next snapshot.
            self._drop(problem, len(notes) - done)

    def _drop(self, problem: str, notes: int) -> None:
        self._problem = self._problem or problem
        self._room = 0
        self._dropped += notes


Put = Callable[[Note], None]

# Notes are made before calls whose result says nothing, so that a call that a plugin fails is noted too.


def _using(inner: Callable[[Iterable[Policy]], None], put: Put) -> Callable[[Iterable[Policy]], None]:
    def use(policies: Iterable[Policy]) -> None:
        live = tuple(policies)
        put(("use", live))
        inner(live)

    return use


def _measuring(inner: Callable[[int], None], put: Put) -> Callable[[int], None]:
    def measure(block_tokens: int) -> None:
        put(("measure", block_tokens))
        inner(block_tokens)

    return measure


def _registering(
    inner: Callable[[WorkerRegistration, float], None], put: Put
) -> Callable[[WorkerRegistration, float], None]:
    def register(registration: WorkerRegistration, now: float) -> None:
        put(("register", now, registration))
        inner(registration, now)

    return register


def _removing(inner: Callable[[str, float], None], put: Put) -> Callable[[str, float], None]:
    def remove(worker: str, now: float) -> None:
        put(("remove", now, worker))
        inner(worker, now)

    return remove


def _hearing(inner: Callable[[WorkerLoad, float], bool], put: Put) -> Callable[[WorkerLoad, float], bool]:
    def hear(load: WorkerLoad, now: float) -> bool:
        counted = inner(load, now)
        put(("hear", now, load, counted))
        return counted

    return hear


def _hearing_kv(
    inner: Callable[[str, str, Told, bool, float], None], put: Put
) -> Callable[[str, str, Told, bool, float], None]:
    def hear_kv(worker: str, boot_id: str, told: Told, complete: bool, now: float) -> None:
        put(("hear_kv", now, worker, boot_id, told, complete))
        inner(worker, boot_id, told, complete, now)

    return hear_kv


def _sweeping(inner: Callable[[float], bool], put: Put) -> Callable[[float], bool]:
    def sweep(now: float) -> bool:
        more = inner(now)
        put(("sweep", now, more))
        return more

    return sweep


def _deciding(
    inner: Callable[[ScheduleRequest, float, int, Policy], Outcome], put: Put
) -> Callable[[ScheduleRequest, float, int, Policy], Outcome]:
    def decide(request: ScheduleRequest, now: float, seed: int, policy: Policy) -> Outcome:
        bound = request.bound  # set later where the request waits
        try:
            outcome = inner(request, now, seed, policy)
        except Exception as error:
            put(("decide", now, seed, policy, request, bound, error))
            raise
        put(("decide", now, seed, policy, request, bound, outcome))
        return outcome

    return decide


def _binding(inner: Callable[[float], list[Bound]], put: Put) -> Callable[[float], list[Bound]]:
    def bind(now: float) -> list[Bound]:
        bound = inner(now)
        put(("bind", now, tuple(bound)))
        return bound

    return bind


def _starting(
    inner: Callable[[RequestKey, str, float, float], None], put: Put
) -> Callable[[RequestKey, str, float, float], None]:
    def started(request: RequestKey, worker: str, ttft_ms: float, now: float) -> None:
        put(("started", now, request, worker, ttft_ms))
        inner(request, worker, ttft_ms, now)

    return started


def _failing(inner: Callable[[AttemptFailed, float], None], put: Put) -> Callable[[AttemptFailed, float], None]:
    def failed(event: AttemptFailed, now: float) -> None:
        put(("failed", now, event))
        inner(event, now)

    return failed


Completed = Callable[[RequestKey, float, bool, int | None, float | None, str | None, int], None]


def _completing(inner: Completed, put: Put) -> Completed:
    def completed(
        request: RequestKey,
        now: float,
        ok: bool,
        output_tokens: int | None = None,
        duration_ms: float | None = None,
        worker: str | None = None,
        told_ms: int = 0,
    ) -> None:
        put(("completed", now, request, ok, output_tokens, duration_ms, worker, told_ms))
        inner(request, now, ok, output_tokens, duration_ms, worker, told_ms)

    return completed


def _applying(inner: Callable[[AnyChange, str, float], bool], put: Put) -> Callable[[AnyChange, str, float], bool]:
    def apply(change: AnyChange, scheduler: str, now: float) -> bool:
        counted = inner(change, scheduler, now)
        put(("apply", now, change, scheduler, counted))
        return counted

    return apply


def _peering(
    inner: Callable[[str, Sequence[PeerRequest], float], None], put: Put
) -> Callable[[str, Sequence[PeerRequest], float], None]:
    def peer(scheduler: str, requests: Sequence[PeerRequest], now: float) -> None:
        put(("peer", now, scheduler, tuple(requests)))
        inner(scheduler, requests, now)

    return peer


def _being_heard(inner: Callable[[str, float], None], put: Put) -> Callable[[str, float], None]:
    def heard(scheduler: str, now: float) -> None:
        put(("heard", now, scheduler))
        inner(scheduler, now)

    return heard


def _cancelling(inner: Callable[[RequestKey], bool], put: Put) -> Callable[[RequestKey], bool]:
    def cancel(request: RequestKey) -> bool:
        put(("cancel", request))
        return inner(request)

    return cancel


def _leaving(
    inner: Callable[[RequestKey, float], Bound | None], put: Put
) -> Callable[[RequestKey, float], Bound | None]:
    def leave_now(request: RequestKey, now: float) -> Bound | None:
        put(("leave_now", now, request))
        return inner(request, now)

    return leave_now


def _dumping(inner: Callable[[int, float], Dump], put: Put) -> Callable[[int, float], Dump]:
    def dump(life: int, now: float) -> Dump:
        put(("dump", now, life))
        return inner(life, now)

    return dump


def _loading(inner: Callable[[int, Dump, float], None], put: Put) -> Callable[[int, Dump, float], None]:
    def load(life: int, dump: Dump, now: float) -> None:
        put(("load", now, life, dump))
        inner(life, dump, now)

    return load
