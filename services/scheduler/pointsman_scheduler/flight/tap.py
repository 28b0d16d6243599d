"""Records every call that enters a pool's scheduler, with its arguments and its result.

A tap shadows the methods of one pool's objects: a pool without a tap runs none of this. No shadowed method calls
another one but `Books.edge_gone`, which isn't shadowed and calls `completed`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, Final, ParamSpec, TypeVar

from pointsman_flight.records import AnswerStarted, BlocksMeasured, LookedAtWaiting, Record, RequestCompleted
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.late_binding import Bound
from pointsman_scheduler.domain.ledger import Disproved, Ledger
from pointsman_scheduler.domain.outcome import Outcome
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.flight.writing import RecordMaker

P = ParamSpec("P")
R = TypeVar("R")

TAPPED: Final = {
    "pool": ("use", "measure", "register", "remove", "hear", "hear_kv", "sweep", "decide", "bind"),
    "books": ("started", "failed", "add_answer", "completed", "apply"),
    "binder": ("peer", "heard", "cancel", "leave_now"),
    "index": ("dump", "load"),
}
"""The methods that are noted: every one by which something enters from outside."""


class Tap:
    """Taps one pool."""

    def __init__(self, pool: PoolScheduler, maker: RecordMaker) -> None:
        self.pool: Final = pool
        self.backlog: Final = maker.backlog
        """Gets the records."""
        self._maker: Final = maker

    def attach(self) -> None:
        """Shadow the pool's methods."""
        pool, maker = self.pool, self._maker
        books, binder, index = pool.books, pool.binder, pool.index
        before, after = self._before, self._after
        shadows: list[tuple[object, dict[str, object]]] = [
            (
                pool,
                {
                    "use": _using(before(pool.use, maker.record_policies)),
                    "measure": before(pool.measure, BlocksMeasured),
                    "register": before(pool.register, maker.record_registered),
                    "remove": before(pool.remove, maker.record_removed),
                    "hear": after(pool.hear, maker.record_load),
                    "hear_kv": before(pool.hear_kv, maker.heard_kv),
                    "sweep": after(pool.sweep, maker.record_sweep),
                    "decide": _deciding(pool.decide, maker),
                    "bind": _binding(pool, maker),
                },
            ),
            (
                books,
                {
                    "started": _starting(books, maker),
                    "failed": before(books.failed, maker.record_failed),
                    "add_answer": before(books.add_answer, maker.answer_added),
                    "completed": _completing(books, maker),
                    "apply": after(books.apply, maker.record_changed),
                },
            ),
            (
                binder,
                {
                    "peer": before(binder.peer, maker.record_peer),
                    "heard": before(binder.heard, maker.peer_heard),
                    "cancel": before(binder.cancel, maker.record_cancelled),
                    "leave_now": before(binder.leave_now, maker.record_left),
                },
            ),
            (index, {"dump": before(index.dump, maker.record_dump), "load": before(index.load, maker.record_loaded)}),
        ]
        for place, methods in shadows:
            for name, method in methods.items():
                setattr(place, name, method)

    def detach(self) -> None:
        """Give the pool its own methods back."""
        self.backlog.close()
        places = {"pool": self.pool, "books": self.pool.books, "binder": self.pool.binder, "index": self.pool.index}
        for place, names in TAPPED.items():
            for name in names:
                delattr(places[place], name)

    def _before(self, inner: Callable[P, R], make: Callable[P, Record]) -> Callable[P, R]:
        """The method with a record of each call, made before it: so a call that a plugin fails has one too."""
        backlog = self.backlog

        def method(*args: P.args, **named: P.kwargs) -> R:
            try:
                backlog.put(make(*args, **named))
            except Exception as error:  # noqa: BLE001 - no request may fail for it
                backlog.refuse_input(error)
            return inner(*args, **named)

        return method

    def _after(self, inner: Callable[P, R], make: Callable[Concatenate[R, P], Record]) -> Callable[P, R]:
        """The method with a record of each call and its result."""
        backlog = self.backlog

        def method(*args: P.args, **named: P.kwargs) -> R:
            result = inner(*args, **named)
            try:
                backlog.put(make(result, *args, **named))
            except Exception as error:  # noqa: BLE001 - no request may fail for it
                backlog.refuse_input(error)
            return result

        return method


def _using(inner: Callable[[Iterable[Policy]], None]) -> Callable[[Iterable[Policy]], None]:
    def use(policies: Iterable[Policy]) -> None:
        inner(tuple(policies))

    return use


# The calls of every request:


def _starting(books: Ledger, maker: RecordMaker) -> Callable[..., None]:
    inner, hashed, note = books.started, maker.hashed, maker.backlog.inputs.append

    def started(
        request: RequestKey,
        worker: str,
        ttft_ms: float,
        now: float,
        handed_ms: float | None = None,
        *,
        decision: int = 1,
    ) -> None:
        edge, request_id = request
        if hashed:
            request_id = hashed(request_id)
        note(
            AnswerStarted(
                at=now,
                edge=edge,
                request_id=request_id,
                worker=worker,
                ttft_ms=ttft_ms,
                handed_ms=handed_ms,
                decision=decision,
            )
        )
        inner(request, worker, ttft_ms, now, handed_ms, decision=decision)

    return started


def _completing(books: Ledger, maker: RecordMaker) -> Callable[..., None]:
    inner, hashed, note = books.completed, maker.hashed, maker.backlog.inputs.append

    def completed(
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
        edge, request_id = request
        if hashed:
            request_id = hashed(request_id)
        note(
            RequestCompleted(
                at=now,
                edge=edge,
                request_id=request_id,
                ok=ok,
                output_tokens=output_tokens,
                duration_ms=duration_ms,
                worker=worker,
                told_ms=told_ms,
                ending=ending,
                disproved=tuple(disproved),
            )
        )
        inner(
            request,
            now,
            ok,
            output_tokens=output_tokens,
            duration_ms=duration_ms,
            worker=worker,
            told_ms=told_ms,
            ending=ending,
            disproved=disproved,
        )

    return completed


Decide = Callable[[ScheduleRequest, float, int, Policy], Outcome]


def _deciding(inner: Decide, maker: RecordMaker) -> Decide:
    note = maker.note_decision

    def decide(request: ScheduleRequest, now: float, seed: int, policy: Policy) -> Outcome:
        bound = request.bound  # set later where the request waits
        try:
            outcome = inner(request, now, seed, policy)
        except Exception as error:
            note(request, error, now=now, seed=seed, policy=policy, bound=bound)
            raise
        note(request, outcome, now=now, seed=seed, policy=policy, bound=bound)
        return outcome

    return decide


def _binding(pool: PoolScheduler, maker: RecordMaker) -> Callable[[float], list[Bound]]:
    """A call changes nothing while no request waits: then it has no record."""
    inner, binder, put = pool.bind, pool.binder, maker.backlog.put

    def bind(now: float) -> list[Bound]:
        if not len(binder):
            return inner(now)
        result = inner(now)
        put(LookedAtWaiting(now, tuple([each.because for each in result])))
        return result

    return bind
