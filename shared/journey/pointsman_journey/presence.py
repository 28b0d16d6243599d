"""The table of live service instances, and where to send the next message.

Pure: time is an argument, in seconds of any monotonic clock.

Why queue groups alone don't do: the server deals messages to a member of a group until its connection ends. A
process that is stopped, swapped out or cut off keeps its connection for minutes, and every n-th message with
it. The table sees the missing heartbeats (`pointsman_contracts.timing`) and goes around.
"""

import math
from dataclasses import dataclass
from typing import Final

from pointsman_contracts.timing import TIMES

FORGOTTEN_AFTER_S: Final = 420.0
"""A silent instance may still be dealt messages until the server drops its connection: by default after a ping
every two minutes, two of them unanswered (nats-server, `ping_interval` and `ping_max`), so six minutes."""


@dataclass(frozen=True, slots=True)
class Group:
    """All known instances are alive: the server deals among the queue group."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Send to this one instance."""

    instance: str


@dataclass(frozen=True, slots=True)
class NoInstance:
    """No live instance is known."""


Where = Group | Direct | NoInstance

_GROUP = Group()
_NO_INSTANCE = NoInstance()


class _Instance:
    __slots__ = ("heard", "ready", "revision", "routes")

    def __init__(self) -> None:
        self.heard = 0.0
        self.ready = False
        self.revision = 0
        self.routes: frozenset[str] = frozenset()


class PresenceTable:
    """Every known instance, by service."""

    def __init__(self) -> None:
        self.lost_after_s = TIMES.service_lost_s
        self._silent_after_s: Final = TIMES.service_silent_s
        self._beat_s: Final = TIMES.beat_s
        """How long a silent instance without a replica is still asked."""
        self.slack_s = 0.0
        """How much longer than usual an instance may be silent, as this process or the machine runs late."""
        self._services: dict[str, dict[str, _Instance]] = {}
        self._turn = 0
        # Listening time: advances only while this process receives messages. After a lost connection, or when
        # this very process was stopped, the others didn't fall silent.
        self._listened = 0.0
        self._ticked: float | None = None

    def note_time(self, now: float, *, listening: bool = True, slack_s: float = 0.0) -> None:
        """Note the time; called at least every `TIMES.beat_s` while the process runs."""
        self.slack_s = slack_s
        if listening and self._ticked is not None:
            self._listened += min(now - self._ticked, 2 * self._beat_s)
        self._ticked = now
        for service, instances in list(self._services.items()):
            for name in [n for n, i in instances.items() if self._listened - i.heard > FORGOTTEN_AFTER_S]:
                del instances[name]
            if not instances:
                del self._services[service]

    def receive_heartbeat(
        self,
        service: str,
        instance: str,
        now: float,
        *,
        ready: bool = True,
        revision: int = 0,
        routes: tuple[str, ...] = (),
    ) -> None:
        """A heartbeat arrived."""
        instances = self._services.setdefault(service, {})
        entry = instances.get(instance)
        if entry is None:
            entry = instances[instance] = _Instance()
        entry.heard = self._time(now)
        entry.ready = ready
        entry.revision = revision
        if len(routes) != len(entry.routes) or not entry.routes.issuperset(routes):
            entry.routes = frozenset(routes)

    def mark_unreachable(self, service: str, instance: str | None) -> None:
        """The server reported that this instance, or every one of the service, doesn't subscribe: it gets no work
        until its next heartbeat."""
        for name, entry in self._services.get(service, {}).items():
            if instance is None or name == instance:
                entry.ready = False

    def find_route(
        self, service: str, route: str | None, now: float, *, resent: bool = False, patient: bool = False
    ) -> Where:
        """Where the next message for a stage goes; `route` is its route token, e.g. the pool.

        A message that is sent again goes to the instance that was heard of last, because the one that swallowed
        the first may not count as silent yet. `patient` is for a message that has no other way to go: when all are
        silent it goes to the one heard of last, unless that is lost.
        """
        instances = self._services.get(service)
        if not instances:
            return _NO_INSTANCE
        time = self._time(now)
        silent_before = time - self._silent_after_s - self.slack_s
        fresh: list[str] = []
        any_silent = False
        last_heard = time - self.lost_after_s - self.slack_s
        last: str | None = None
        for name, entry in instances.items():
            routes, heard = entry.routes, entry.heard
            # One whose last word was "not ready" had left the queue group, or hadn't joined it.
            if not entry.ready or (routes and route is not None and route not in routes):
                continue
            if heard < silent_before:
                any_silent = True
            else:
                fresh.append(name)
            if heard >= last_heard:
                last_heard, last = heard, name
        if last is None or not (fresh or patient):
            return _NO_INSTANCE
        if resent or not fresh:
            return Direct(last)
        if not any_silent:
            return _GROUP
        self._turn += 1
        return Direct(fresh[self._turn % len(fresh)])

    def is_alive(self, service: str, instance: str, now: float) -> bool:
        """Whether this instance isn't silent."""
        entry = self._services.get(service, {}).get(instance)
        return entry is not None and entry.heard >= self._time(now) - self._silent_after_s - self.slack_s

    def hold_time_left(self, service: str, route: str | None, silent_s: float, leaving_s: float, now: float) -> float:
        """Seconds for which a request may still wait for this stage while it has no live instance; at most 0: none.

        An instance whose last word was that it leaves, or isn't ready yet, is being started again: `leaving_s` seconds
        count from that word. One that fell silent without a word hangs or was killed: `silent_s` count.
        """
        time = self._time(now)
        return max(
            (
                entry.heard + self.slack_s + (silent_s if entry.ready else leaving_s) - time
                for entry in self._services.get(service, {}).values()
                if not entry.routes or route is None or route in entry.routes
            ),
            default=0.0,
        )

    def seconds_silent(self, service: str, instance: str, now: float) -> float:
        """Seconds since this instance was heard; infinite when it never was."""
        entry = self._services.get(service, {}).get(instance)
        return math.inf if entry is None else max(0.0, self._time(now) - entry.heard)

    def is_addressable(self, service: str, instance: str, now: float, route: str | None = None) -> bool:
        """Whether this instance is alive and takes work; with `route`, such work."""
        if not self.is_alive(service, instance, now):
            return False
        entry = self._services[service][instance]
        return entry.ready and (route is None or not entry.routes or route in entry.routes)

    def list_instances(self, service: str, now: float) -> dict[str, bool]:
        """Every known instance of a service, and whether it is alive."""
        return {name: self.is_alive(service, name, now) for name in self._services.get(service, {})}

    def has_live_peer(self, service: str, instance: str, now: float) -> bool:
        """Whether another instance of a service than this one is alive."""
        return any(name != instance and self.is_alive(service, name, now) for name in self._services.get(service, ()))

    def has_others(self, service: str) -> bool:
        """Whether more than one instance of a service is known, alive or silent."""
        return len(self._services.get(service, ())) > 1

    def all_run(self, revision: int, now: float) -> bool:
        """Whether every instance that takes work and runs a configuration runs this revision or a later one."""
        silent_before = self._time(now) - self._silent_after_s - self.slack_s
        return not any(
            0 < entry.revision < revision
            for instances in self._services.values()
            for entry in instances.values()
            if entry.ready and entry.heard >= silent_before
        )

    def _time(self, now: float) -> float:
        if self._ticked is None:
            return self._listened
        return self._listened + min(now - self._ticked, 2 * self._beat_s)
