"""`/live`, `/ready` with the reasons when not, or after a wait for it, `/metrics`; and how late the event loop runs."""

import asyncio
import json
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Gauge, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_hosting.http_server import Receive, Scope, Send
from pointsman_runtime.bus.held_events import HeldEvents
from pointsman_runtime.bus.replies import ReplyTable
from pointsman_runtime.telling.tallies import Tallies

WATCH_S = 0.25
"""How often the event loop's lateness is measured."""

LONGEST_WAIT_S = 300.0
"""More is cut in a `/ready?wait_s=`."""
_LOOK_S = 0.1
DRAINED = "/drained"
"""An agent's path: 200 once its engine has nothing left, e.g. for the hook that Kubernetes waits for before it ends the
engine."""

_write_openmetrics, _OPENMETRICS = exposition.choose_encoder("application/openmetrics-text")


class Readiness:
    """Named checks; each returns None or the reason why the service isn't ready."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str | None]] = {}

    def add_check(self, name: str, check: Callable[[], str | None]) -> None:
        """Add a check, or put it in the place of the one of this name; it is called at every `/ready`, so it looks and
        doesn't work."""
        self._checks[name] = check

    @property
    def has_checks(self) -> bool:
        return bool(self._checks)

    def remove_check(self, name: str) -> None:
        """Leave a check out."""
        del self._checks[name]

    def include_checks(self, name: str, other: "Readiness", without: str = "") -> None:
        """Add every check of another one but `without`, under `name`."""

        def check() -> str | None:
            reasons = (f"{what}: {reason}" for what, reason in other.failed_checks().items() if what != without)
            return "; ".join(reasons) or None

        self.add_check(name, check)

    def failed_checks(self) -> dict[str, str]:
        """The failed checks and their reasons; empty when ready."""
        found = {name: check() for name, check in self._checks.items()}
        return {name: reason for name, reason in found.items() if reason is not None}


class HealthApp:
    """The ASGI application; an edge gives its answers on its main port too."""

    paths = frozenset({"/live", "/ready", "/metrics"})

    def __init__(self, readiness: Readiness, registry: CollectorRegistry, drained: Readiness | None = None) -> None:
        """`drained`: the checks behind `/drained`; None without that path."""
        self._readiness = readiness
        self._registry = registry
        self._waiting = {"/ready": readiness} if drained is None else {"/ready": readiness, DRAINED: drained}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del receive
        if scope["type"] != "http":
            return
        accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
        checks = self._waiting.get(scope["path"])
        if checks is not None:
            await _wait(checks, _seconds(scope["query_string"]))
        status, kind, body = self.answer_path(scope["path"], accepted)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def answer_path(self, path: str, accepted: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body; `accepted` is the header `Accept`, empty without one."""
        if path == "/metrics":
            if _takes_openmetrics(accepted):
                return 200, _OPENMETRICS, _write_openmetrics(self._registry)
            return 200, exposition.CONTENT_TYPE_LATEST, exposition.generate_latest(self._registry)
        if path == "/ready":
            reasons = self._readiness.failed_checks()
            document = {"ready": not reasons, "reasons": reasons}
            return (503 if reasons else 200), "application/json", json.dumps(document).encode()
        if path == DRAINED and (checks := self._waiting.get(DRAINED)) is not None:
            reasons = checks.failed_checks()
            document = {"drained": not reasons, "reasons": reasons}
            return (503 if reasons else 200), "application/json", json.dumps(document).encode()
        if path == "/live":
            return 200, "application/json", b'{"live": true}'
        return 404, "application/json", json.dumps({"paths": sorted(self.paths)}).encode()


async def _wait(checks: Readiness, seconds: float) -> None:
    """Return once no check fails, or after `seconds`. A start-up probe that waits needn't fail every other second."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while checks.failed_checks() and loop.time() < end:  # noqa: ASYNC110 - checks tell no one when they change
        await asyncio.sleep(_LOOK_S)


def _seconds(query: bytes) -> float:
    """`wait_s` of a query, from 0 to LONGEST_WAIT_S; 0 without one, and for one that is no number."""
    try:
        given = float(parse_qs(query.decode("latin-1")).get("wait_s", ["0"])[-1])
    except ValueError:
        return 0.0
    return min(given, LONGEST_WAIT_S) if given > 0 else 0.0


def _takes_openmetrics(accepted: bytes) -> bool:
    """Whether a scraper reads OpenMetrics 1.0, which has exemplars. The client library's own reading of the header
    raises for a malformed version."""
    for each in accepted.decode("latin-1").lower().split(","):
        kind, *parameters = [part.strip() for part in each.split(";")]
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if kind == "application/openmetrics-text" and given.get("version", "1.0.0") in ("1.0.0", "1.0"):
            return given.get("q", "1").strip("0.") != ""
    return False


class LoopWatch:
    """Measures how late timers fire: the largest lateness since metrics were last scraped."""

    def __init__(self, registry: CollectorRegistry, every_s: float = WATCH_S) -> None:
        self._every_s = every_s
        self._worst = 0.0
        self._timer: asyncio.TimerHandle | None = None
        gauge = Gauge(
            "pointsman_event_loop_lag_seconds",
            "Largest lateness of the event loop since the last scrape",
            registry=registry,
        )
        gauge.set_function(self._take)

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._timer = self._next(loop)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        self._worst = max(self._worst, loop.time() - due)
        self._timer = self._next(loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle:
        due = loop.time() + self._every_s
        return loop.call_at(due, self._turn, due)

    def _take(self) -> float:
        worst, self._worst = self._worst, 0.0
        return worst


class BusCollector(Collector):
    """The bus's plain counters as Prometheus metrics, read at the scrape: counting costs nothing more."""

    def __init__(self, tallies: Tallies, replies: ReplyTable, held: HeldEvents) -> None:
        self._tallies = tallies
        self._replies = replies
        self._held = held

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        messages = CounterMetricFamily(
            "pointsman_bus_messages", "Messages received, by what became of them", labels=["subscription", "outcome"]
        )
        counts: dict[tuple[str, str], int] = {}
        for tally in self._tallies:
            for outcome in ("handled", "dropped", "dead", "malformed", "failed"):
                key = tally.name, outcome
                counts[key] = counts.get(key, 0) + getattr(tally, outcome)
        for key, count in counts.items():
            messages.add_metric(key, count)
        yield messages
        yield CounterMetricFamily(
            "pointsman_bus_late_replies", "Replies that came after their request had ended", self._replies.late
        )
        yield GaugeMetricFamily("pointsman_events_held", "Events that the stream hasn't confirmed yet", len(self._held))
        yield CounterMetricFamily(
            "pointsman_events_repeated", "Events that were sent to the stream again", self._held.repeated
        )
        lost = CounterMetricFamily(
            "pointsman_events_lost", "Events that the stream will never have, by why", labels=["reason"]
        )
        for reason, count in self._held.lost.items():
            lost.add_metric([reason], count)
        yield lost
