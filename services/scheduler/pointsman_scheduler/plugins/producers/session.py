"""`session`: which workers served a session last."""

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
from pointsman_scheduler.plugins.handlers.disaggregated import ENCODE, PREFILL

_LEGS: Final = ("", PREFILL, ENCODE)
"""The answer's comes first."""

SESSION_WORKERS: Final[Key[tuple[str, ...]]] = Key("session-workers", tuple[str, ...])
"""Names of the workers that serve the request's session: the one that answers, then those of its legs. Empty when it
has none yet."""


class SessionParams(Params):
    ttl: PositiveDuration = 300.0
    """A session without a request for this long is forgotten."""
    sessions: int = Field(default=100_000, ge=1)
    """Most sessions remembered; the least recently used one is dropped."""


class Session(Producer[SessionParams], ResponseObserver[SessionParams]):
    """Learns from every scheduler's choices, so that replicas agree."""

    type_name = "session"
    produces = (SESSION_WORKERS,)

    def setup(self) -> None:
        self._bound: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def bound_worker(self, session: str, now: float) -> str | None:
        """The worker that answers the session; None for a session that is unknown or forgotten."""
        bound = self._bound.get(session)
        return bound[0] if bound is not None and now - bound[1] <= self.params.ttl else None

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        session, workers = request.facts.session, ()
        if session is not None:
            known = [self._bound.get(_key(session, leg)) for leg in _LEGS]
            workers = tuple(
                [each[0] for each in known if each is not None and everyone.now - each[1] <= self.params.ttl]
            )
        request.put(SESSION_WORKERS, workers)

    def chosen(self, hold: Hold, now: float) -> None:
        if hold.change.session is None:
            return
        key = _key(hold.change.session, hold.change.leg)
        self._bound[key] = (hold.worker.name, now)
        self._bound.move_to_end(key)
        oldest = next(iter(self._bound))
        if len(self._bound) > self.params.sessions or now - self._bound[oldest][1] > self.params.ttl:
            del self._bound[oldest]


def _key(session: str, leg: str) -> str:
    # No session id has a line feed.
    return f"{leg}\n{session}" if leg else session
