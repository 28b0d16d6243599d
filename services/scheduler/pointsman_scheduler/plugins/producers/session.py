"""`session`: which worker served a session last."""

from collections import OrderedDict
from typing import Final

from pydantic import Field

from pointsman_core.plugins import Key
from pointsman_core.units import PositiveDuration
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Producer, ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold

SESSION_WORKER: Final[Key[str]] = Key("session-worker", str)
"""Name of the worker that serves the request's session; empty when it has none yet."""


class SessionParams(Params):
    ttl: PositiveDuration = 300.0
    """A session without a request for this long is forgotten."""
    sessions: int = Field(default=100_000, ge=1)
    """Most sessions remembered; the least recently used one is dropped."""


class Session(Producer[SessionParams], ResponseObserver[SessionParams]):
    """Learns from every scheduler's choices, so that replicas agree."""

    type_name = "session"
    produces = (SESSION_WORKER,)

    def setup(self) -> None:
        self._bound: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        worker = ""
        if request.session is not None:
            worker, at = self._bound.get(request.session, ("", everyone.now))
            if everyone.now - at > self.params.ttl:
                worker = ""
        request.put(SESSION_WORKER, worker)

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.session is None or hold.leg:
            return
        self._bound[hold.session] = (hold.worker.name, now)
        self._bound.move_to_end(hold.session)
        oldest = next(iter(self._bound))
        if len(self._bound) > self.params.sessions or now - self._bound[oldest][1] > self.params.ttl:
            del self._bound[oldest]
