"""`session`: which worker served a session last."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from pointsman_core.plugins import Key, Params, Plugin
from pointsman_core.units import PositiveDuration
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.ledger import Hold
from pointsman_scheduler.domain.points import Producer, ResponseObserver
from pointsman_scheduler.domain.request import ScheduleRequest

SESSION_WORKER: Final[Key[str]] = Key("session-worker", str)
"""Name of the worker that serves the request's session; empty when it has none yet."""


class SessionParams(Params):
    ttl: PositiveDuration = 300.0
    """A session without a request for so long is forgotten."""
    sessions: int = Field(default=100_000, ge=1)
    """Sessions remembered at most; the least recently used gives way."""


class Session(Producer, ResponseObserver):
    """Learns from every scheduler's choices, so that replicas agree."""

    type_name: ClassVar[str] = "session"
    params_type: ClassVar[type[Params]] = SessionParams
    produces = (SESSION_WORKER,)

    def __init__(self, name: str, params: SessionParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._ttl: Final = params.ttl
        self._limit: Final = params.sessions
        self._bound: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        worker = ""
        if request.session is not None:
            worker, at = self._bound.get(request.session, ("", everyone.now))
            if everyone.now - at > self._ttl:
                worker = ""
        request.put(SESSION_WORKER, worker)

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.session is None or hold.leg:
            return
        self._bound[hold.session] = (hold.worker.name, now)
        self._bound.move_to_end(hold.session)
        oldest = next(iter(self._bound))
        if len(self._bound) > self._limit or now - self._bound[oldest][1] > self._ttl:
            del self._bound[oldest]
