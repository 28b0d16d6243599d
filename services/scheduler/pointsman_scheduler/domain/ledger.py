"""The books: which request is on which worker, one entry for each request and leg, from every scheduler.

Every operation may be repeated, come late, or come for a request that is long over, and leaves the books
right. What ended is remembered for a while, because a peer's reservation may arrive after the edge's report that the
request is over: they travel on different subjects.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pointsman_plugins.scheduling.request import RequestKey
from pointsman_plugins.scheduling.worker import NEVER, Hold, Worker

REMEMBER_ENDED_S: Final = 10.0
ASK_AFTER_S: Final = 60.0
"""A reservation this old is queried at its edge, and again after as long. Age alone never drops one, since a request
may well take longer (llm-d-router issue 2295)."""
SURPLUS_AFTER_S: Final = 2.0
"""An engine must report fewer requests than the books hold for this long before the books are checked early."""
ASK_AGAIN_S: Final = 5.0


class _End(NamedTuple):
    at: float
    """Monotonic."""
    told_ms: int


class Ledger:
    """`settle` is called with each worker whose books changed."""

    def __init__(self, settle: Callable[[Worker], None]) -> None:
        self._settle = settle
        self._holds: dict[RequestKey, tuple[Hold, ...]] = {}
        # A plain dictionary walks past all removed keys to find its first.
        self._ended: OrderedDict[RequestKey, _End] = OrderedDict()

    def __len__(self) -> int:
        """Requests on the books."""
        return len(self._holds)

    def __iter__(self) -> Iterator[Hold]:
        for holds in self._holds.values():
            yield from holds

    def of(self, request: RequestKey, leg: str = "") -> Hold | None:
        """The reservation of a request for one leg, or None."""
        holds = self._holds.get(request)
        if holds is not None:
            for hold in holds:
                if hold.leg == leg:
                    return hold
        return None

    def legs(self, request: RequestKey) -> tuple[Hold, ...]:
        """All reservations of a request."""
        return self._holds.get(request, ())

    def ended(self, request: RequestKey) -> bool:
        """Whether the request ended a short while ago."""
        return request in self._ended

    def ended_before(self, request: RequestKey, received_ms: int) -> bool:
        """Whether the request that its edge received at `received_ms` is over: its end was reported before its journey
        came. A later request of the same id isn't. Times by the edge's clock, in Unix milliseconds."""
        end = self._ended.get(request)
        return end is not None and received_ms < end.told_ms

    def reserve(self, hold: Hold) -> None:
        """Put a reservation on the books. There must be none for this request and leg."""
        request = hold.request
        holds = self._holds.get(request)
        self._holds[request] = (hold,) if holds is None else (*holds, hold)
        self._ended.pop(request, None)
        hold.worker.put(hold)
        self._settle(hold.worker)

    def confirm(self, hold: Hold) -> None:
        """The answer began."""
        if not hold.confirmed:
            hold.worker.confirm(hold)
            self._settle(hold.worker)

    def withdraw(self, hold: Hold, now: float) -> None:
        """Take one reservation off the books; the request continues elsewhere or has ended."""
        request = hold.request
        holds = self._holds[request]
        if len(holds) > 1:
            self._holds[request] = tuple([other for other in holds if other is not hold])
        else:
            del self._holds[request]
        hold.worker.take_off(hold, now)
        self._settle(hold.worker)

    def end(self, request: RequestKey, now: float, told_ms: int = 0) -> None:
        """The request is over: late reports of its reservations are ignored. `told_ms`: when its edge reported the end,
        by the edge's clock; 0 when it didn't."""
        self._ended[request] = _End(now, told_ms)
        while (oldest := next(iter(self._ended))) != request and now - self._ended[oldest].at > REMEMBER_ENDED_S:
            del self._ended[oldest]

    def doubtful(self, now: float, mine: Callable[[str], bool]) -> dict[str, list[str]]:
        """Ids of requests to query at their edges, by edge: old ones, and those that the engine doesn't seem to have.
        Only reservations of schedulers that are `mine` to look after; each is named again after a while."""
        questions: dict[str, list[str]] = {}
        for hold in self:
            age = now - hold.at
            surplus = now - hold.worker.surplus_since if hold.worker.surplus_since != NEVER else 0.0
            if surplus >= SURPLUS_AFTER_S and age >= SURPLUS_AFTER_S:
                due = now - hold.asked_at >= ASK_AGAIN_S
            else:
                due = age >= ASK_AFTER_S and now - hold.asked_at >= ASK_AFTER_S
            if due and mine(hold.scheduler):
                hold.asked_at = now
                questions.setdefault(hold.edge, []).append(hold.request_id)
        return questions
