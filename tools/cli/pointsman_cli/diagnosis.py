"""What `pointsman doctor` makes of what it saw: each finding is fine, a warning or a failure, with what to do. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import Final

from pointsman_contracts.generation import Generations
from pointsman_contracts.parties import AGENT, EDGES
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import ServicePresence
from pointsman_core.config import Config, active

OLDEST_SERVER: Final = (2, 10)
"""The first nats-server with everything that is used: consumers of several subjects, stream metadata."""
SKEW_WARNING_MS: Final = 250.0
"""Deadlines travel as wall-clock times; a hop's is 600 ms."""
SKEW_FAILURE_MS: Final = 600.0
ENVELOPE: Final = 256 * 1024
"""What must be left of `max_payload` beside the largest body, for headers and the request's envelope, in bytes."""
LAG_WARNING: Final = 100_000
"""Events that a durable reader may be behind before that is worth a word."""
FULL_WARNING: Final = 0.9


class Level(StrEnum):
    """How a finding is meant."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True)
class Server:
    """The NATS server."""

    url: str
    version: str
    round_trip_ms: float
    max_payload: int
    tls: bool
    auth_required: bool
    loopback: bool


@dataclass(frozen=True)
class StreamFacts:
    """The stream of events."""

    messages: int
    used_bytes: int
    max_bytes: int
    max_age_s: float
    replicas: int
    lags: Mapping[str, int] | None = field(default_factory=dict[str, int])
    """Durable reader → events that it hasn't been given; None when the server doesn't say."""


@dataclass(frozen=True)
class Heard:
    """An instance that was heard, and by how much its clock differs at most, in ms (positive: it is ahead)."""

    presence: ServicePresence
    skew_ms: float


@dataclass(frozen=True)
class Facts:
    """Everything that was seen."""

    server: Server
    refused: Sequence[str] = ()
    """What the server didn't permit, in its words."""
    jetstream: str | None = None
    """Why JetStream can't be used; None when it can."""
    stream: StreamFacts | None = None
    config: Config | None = None
    revision: int = 0
    config_problem: str | None = None
    services: Sequence[Heard] = ()
    pools: Sequence[PoolSnapshot] = ()
    """The last of each metrics-collector."""


def findings(facts: Facts) -> list[Finding]:
    """The whole diagnosis, in the order in which a person would mend things."""
    return [
        *_server(facts.server, facts.config),
        *_permissions(facts.refused),
        *_jetstream(facts),
        *_configuration(facts),
        *_services(facts),
        *_contracts(facts.services),
        *_clocks(facts.services),
        *_discovery(facts),
        *_pools(facts),
    ]


def _ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def _warn(what: str, advice: str) -> Finding:
    return Finding(Level.WARN, what, advice)


def _fail(what: str, advice: str) -> Finding:
    return Finding(Level.FAIL, what, advice)


def _server(server: Server, config: Config | None) -> Iterator[Finding]:
    yield _ok(f"NATS {server.version} at {server.url} answers in {server.round_trip_ms:.1f} ms")
    if tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit()) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        yield _fail(f"nats-server {server.version} is too old", f"Use {oldest} or newer.")
    body = config.edge.max_body if config is not None else 4 * 2**20
    if server.max_payload < body + ENVELOPE:
        yield _fail(
            f"max_payload is {_size(server.max_payload)}, too small for bodies of {_size(body)} (edge.max_body)",
            "Set `max_payload: 8MB` in the server's configuration, or lower edge.max_body; until then clients get 413.",
        )
    else:
        yield _ok(f"max_payload is {_size(server.max_payload)}, enough for bodies of {_size(body)}")
    if not server.loopback and not server.auth_required:
        yield _fail(
            "the server takes anybody, and is reachable from other hosts",
            "Give it users and TLS; docs/security.md shows how.",
        )
    elif not server.loopback and not server.tls:
        yield _warn("the connection isn't encrypted", "Use a tls:// URL; docs/security.md shows how.")


def _permissions(refused: Sequence[str]) -> Iterator[Finding]:
    for words in refused:
        yield _warn(
            f"not permitted: {words}", "What follows is incomplete. Use an identity that may read `pm.>` and `$KV.>`."
        )
    if not refused:
        yield _ok("this identity may read signals, events and buckets")


def _jetstream(facts: Facts) -> Iterator[Finding]:
    if facts.jetstream is not None:
        yield _fail(
            f"JetStream can't be used: {facts.jetstream}",
            "Put `jetstream {}` into the server's configuration: the configuration and the events live there.",
        )
        return
    stream = facts.stream
    if stream is None:
        yield _no_stream(facts)
        return
    age = f" for {stream.max_age_s / 86400:g} days" if stream.max_age_s else ""
    limit = f" of {_size(stream.max_bytes)}" if stream.max_bytes > 0 else ""
    kept = f"PM_EVENTS keeps events{age}: {stream.messages:,} in {_size(stream.used_bytes)}{limit}"
    if stream.max_bytes > 0 and stream.used_bytes > FULL_WARNING * stream.max_bytes:
        yield _warn(f"{kept}; the oldest go before their time", "Raise the stream's max_bytes.")
    else:
        yield _ok(kept)
    if stream.lags is None:
        yield _warn("how far behind the readers of PM_EVENTS are isn't known", "Log in as the operator.")
        return
    for name, lag in stream.lags.items():
        if lag > LAG_WARNING:
            yield _warn(f"the reader {name!r} of PM_EVENTS is {lag:,} events behind", "Is it running, and fast enough?")


def _no_stream(facts: Facts) -> Finding:
    if facts.refused:
        return _warn("the stream PM_EVENTS can't be looked at", "Log in as the operator.")
    what = "there is no stream PM_EVENTS: no event is kept"
    if all(heard.presence.service == AGENT for heard in facts.services):
        return _warn(what, "Every service but the agents makes it where it is missing; none is heard.")
    return _fail(
        what,
        "Every service but the agents makes it when it connects, and a recorder whenever it misses it; "
        "their logs say why they couldn't (jetstream_unavailable).",
    )


def _configuration(facts: Facts) -> Iterator[Finding]:
    if facts.config_problem is not None:
        yield _fail(
            f"the stored configuration: {facts.config_problem}", "Apply a right one: `pointsman config apply FILE`."
        )
    elif facts.config is not None:
        yield _ok(f"configuration revision {facts.revision}, policy {facts.config.policy_hash()}")


def _services(facts: Facts) -> Iterator[Finding]:
    by_service: dict[str, list[ServicePresence]] = {}
    for heard in facts.services:
        by_service.setdefault(heard.presence.service, []).append(heard.presence)
    for service in sorted(by_service):
        yield from _instances(service, by_service[service], facts.revision)
    for service, profiles in sorted(_needed(facts.config).items()):
        if service not in by_service:
            used = (
                f"the profile{'s' if len(profiles) > 1 else ''} {', '.join(profiles)}" if profiles else "every request"
            )
            yield _fail(f"no {service} is heard, and {used} needs one", f"Start one: pointsman-{service}.")
    if not by_service.keys() & set(EDGES):
        yield _fail(
            "neither a frontend nor an epp-adapter is heard: no request can enter",
            "Start one: pointsman-frontend, or pointsman-epp-adapter behind an Envoy.",
        )
    if "recorder" not in by_service:
        yield _warn(
            "no recorder is heard: usage isn't counted, and events are kept by the stream alone",
            "Start one: pointsman-recorder. It reads what the stream has kept meanwhile.",
        )
    versions = {presence.version for members in by_service.values() for presence in members}
    if len(versions) > 1:
        yield _warn(f"several versions run: {', '.join(sorted(versions))}", "Fine during an upgrade; finish it.")


def _contracts(services: Sequence[Heard]) -> Iterator[Finding]:
    speakers: dict[Generations, list[ServicePresence]] = {}
    for heard in services:
        speakers.setdefault(Generations(*heard.presence.contracts), []).append(heard.presence)
    for one, other in combinations(sorted(speakers), 2):
        if not one.understands(other):
            sides = [
                f"{', '.join(sorted({f'{presence.service} {presence.version}' for presence in speakers[side]}))} "
                f"(generation {side})"
                for side in (one, other)
            ]
            yield _fail(
                f"these don't understand each other: {' and '.join(sides)}",
                "Those that came later don't get ready. End one side, or run a version between that speaks both.",
            )


def _instances(service: str, members: Sequence[ServicePresence], revision: int) -> Iterator[Finding]:
    ready = [presence for presence in members if presence.ready]
    named = f"{service}: {len(ready)} of {len(members)} ready" if len(members) > 1 else f"{service}: one"
    versions = ", ".join(sorted({presence.version for presence in members}))
    if not ready:
        yield _fail(f"{service}: none of {len(members)} is ready", "Its /ready says why.")
    elif len(ready) < len(members):
        yield _warn(f"{named}, version {versions}", "The others are starting or draining; their /ready says which.")
    else:
        yield _ok(f"{named}, version {versions}")
    behind = sorted({presence.revision for presence in ready if 0 < presence.revision < revision})
    if behind:
        yield _warn(
            f"{service} runs configuration revision {', '.join(map(str, behind))}, not {revision}",
            "Its log says why it refused the newer one (config_refused).",
        )


def _clocks(services: Sequence[Heard]) -> Iterator[Finding]:
    worst = max(services, key=lambda heard: abs(heard.skew_ms), default=None)
    if worst is None:
        return
    who = f"{worst.presence.service} {worst.presence.instance}"
    words = f"the clock of {who} is {abs(worst.skew_ms):.0f} ms {'ahead' if worst.skew_ms > 0 else 'behind'}"
    advice = "Run a time service (chrony, systemd-timesyncd) on every host: deadlines are wall-clock times."
    if abs(worst.skew_ms) >= SKEW_FAILURE_MS:
        yield _fail(f"{words}: its messages count as dead, or never die", advice)
    elif abs(worst.skew_ms) >= SKEW_WARNING_MS:
        yield _warn(words, advice)
    else:
        yield _ok("all clocks agree")


def _discovery(facts: Facts) -> Iterator[Finding]:
    """Whether clusters and files say who is in their pools; what is wrong may be so at one metrics-collector alone."""
    advice = {
        "kubernetes": "Engines stay as they were last known. docs/kubernetes.md has the role and the credentials.",
        "file": "The last good list stays in force. Mend the file; it is read again by itself.",
    }
    for name, pool in (facts.config.pools if facts.config is not None else {}).items():
        if pool.discovery not in advice:
            continue
        told = [(each.source, each.discovery) for each in facts.pools if each.pool == name and each.discovery]
        where = "the Kubernetes cluster" if pool.discovery == "kubernetes" else f"the file {pool.file}"
        if not told:
            yield _warn(
                f"pool {name}: {where} wasn't looked at yet", "Is a metrics-collector running, and of this age?"
            )
        problems = [(source, found.problem) for source, found in told if found.problem]
        for source, problem in problems:
            yield _fail(f"pool {name}: {where}, as {source} sees it: {problem}", advice[pool.discovery])
        if told and not problems:
            count = told[-1][1].endpoints
            yield _ok(f"pool {name}: {where} is read and names {count} endpoint{'' if count == 1 else 's'}")


def _pools(facts: Facts) -> Iterator[Finding]:
    seen = {snapshot.pool: snapshot for snapshot in facts.pools}
    for name in facts.config.pools if facts.config is not None else ():
        snapshot = seen.get(name)
        if snapshot is None:
            yield _fail(f"pool {name}: nothing is heard of it", "A metrics-collector tells; is one running?")
            continue
        serving = [worker for worker in snapshot.workers if worker.state == "serving"]
        others = [f"{worker.worker} {worker.state}" for worker in snapshot.workers if worker.state != "serving"]
        words = f"pool {name}: {len(serving)} of {len(snapshot.workers)} workers serve {', '.join(snapshot.models)}"
        if not serving:
            yield _fail(
                f"pool {name}: no worker serves" + (f" ({', '.join(others)})" if others else ""),
                "Start an engine and a pointsman-worker-agent beside it with this pool's name.",
            )
        elif others:
            yield _warn(f"{words}; {', '.join(others)}", "The agents' logs say what is wrong with these engines.")
        else:
            yield _ok(words)


def _needed(config: Config | None) -> dict[str, list[str]]:
    """Service → profiles that need it; no profile when every request does."""
    if config is None:
        return {}
    needed: dict[str, list[str]] = {"preprocessor": [], "profile-picker": [], "metrics-collector": []}
    for name, profile in config.profiles.items():
        for use in active(profile.request):
            insists = use.on_error not in ("allow", "degrade") and not use.shadow
            if insists and use.service not in config.stages:
                profiles = needed.setdefault(use.service, [])
                if name not in profiles:
                    profiles.append(name)
    return needed


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
