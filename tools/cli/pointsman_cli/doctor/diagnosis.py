"""The findings of `pointsman doctor`: each is fine, a warning or a failure, with advice. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from pointsman_cli.doctor import service_findings, worker_findings
from pointsman_cli.doctor.facts import SILENT, Facts, NatsFacts
from pointsman_cli.doctor.finding import DiagnosisLine, fail, ok, warn
from pointsman_cli.words import counted, moment
from pointsman_contracts.parties import AGENT
from pointsman_contracts.pool import WorkerView
from pointsman_contracts.subjects import EVENT_SUBJECTS, OWED_SUBJECTS
from pointsman_contracts.usage import LostSum

OLDEST_SERVER: Final = (2, 10)
"""The first nats-server with everything that is used: consumers of several subjects, stream metadata."""
LEAST_PAYLOAD: Final = 2**20
"""Bytes; the server's default. Answers of recorders and schedulers are cut to fit it."""
LAG_WARNING: Final = 100_000
"""Events that a durable reader may be behind before that is worth a word."""
FULL_WARNING: Final = 0.9

_LISTED: Final = "Look at these engines: is each running at its URL, and is its `engine` and `health` right?"
_FOUND: Final = "Look at these engines; the log of the metrics-collector that reads them says what is wrong."
_MISSING: Final = {
    "agents": "Start an engine and a pointsman-worker-agent beside it with this pool's name.",
    "static": f"The pool's `engines` list them. {_LISTED}",
    "file": f"The pool's file lists them. {_LISTED}",
    "kubernetes": "Are there ready Pods that the InferencePool selects? " + _FOUND,
}
_ILL: Final = {
    "agents": "The agents' logs say what is wrong with these engines.",
    "static": _LISTED,
    "file": _LISTED,
    "kubernetes": _FOUND,
}
"""Advice by the source of a pool's endpoints."""
_UNREADY: Final = "Their health pages say why, or don't answer. A request goes to them while there is no other engine."


def findings(facts: Facts) -> list[DiagnosisLine]:
    """The whole diagnosis, in the order in which a person would mend things."""
    return [
        *_server(facts.server),
        *_permissions(facts.refused),
        *_jetstream(facts),
        *_configuration(facts),
        *service_findings.services(facts),
        *service_findings.contracts(facts.services),
        *service_findings.clocks(facts.services),
        *service_findings.descriptors(facts.services),
        *_discovery(facts),
        *_pools(facts),
        *_workers(facts),
    ]


def _server(server: NatsFacts) -> Iterator[DiagnosisLine]:
    yield ok(f"NATS {server.version} at {server.url} answers in {server.round_trip_ms:.1f} ms")
    if tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit()) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        yield fail(f"nats-server {server.version} is too old", f"Use {oldest} or newer.")
    if server.max_payload < LEAST_PAYLOAD:
        yield fail(
            f"max_payload is {_size(server.max_payload)}, too small for the messages of this gateway",
            "Set `max_payload: 8MB` in the server's configuration; its default of 1 MB is enough, too.",
        )
    else:
        yield ok(f"max_payload is {_size(server.max_payload)}; larger bodies travel in parts")
    if not server.loopback and not server.auth_required:
        yield fail(
            "the server accepts clients without a login, and is reachable from other hosts",
            "Give it users and TLS; docs/security.md shows how.",
        )
    elif not server.loopback and not server.tls:
        yield warn("the connection isn't encrypted", "Use a tls:// URL; docs/security.md shows how.")


def _permissions(refused: Sequence[str]) -> Iterator[DiagnosisLine]:
    for words in refused:
        yield warn(
            f"not permitted: {words}", "What follows is incomplete. Use an identity that may read `pm.>` and `$KV.>`."
        )
    if not refused:
        yield ok("this identity may read signals, events and buckets")


def _jetstream(facts: Facts) -> Iterator[DiagnosisLine]:
    if facts.jetstream is not None:
        if facts.jetstream == SILENT:
            advice = "Its server's log and /healthz say why. Requests go on; nothing is stored until it answers."
        else:
            advice = "Put `jetstream {}` into the server's configuration: the configuration and the events live there."
        yield fail(f"JetStream can't be used: {facts.jetstream}", advice)
        return
    if facts.disk is not None:
        yield fail(
            f"JetStream can't write to its disk: {facts.disk}",
            "Is the disk of the NATS server's store_dir full? Requests go on; events, usage and changes of the "
            "configuration aren't stored until it has room.",
        )
    stream = facts.stream
    if stream is None:
        yield _no_stream(facts)
        return
    age = f" for {stream.max_age_s / 86400:g} days" if stream.max_age_s else ""
    limit = f" of {_size(stream.max_bytes)}" if stream.max_bytes > 0 else ""
    kept = f"PM_EVENTS keeps events{age}: {stream.messages:,} in {_size(stream.used_bytes)}{limit}"
    if stream.unkept:
        yield fail(
            f"PM_EVENTS takes no events: {stream.unkept} came just now, and none was stored",
            "Free the server's disk, then restart JetStream: a stream that couldn't be written stays closed. "
            "`pointsman up` does so by itself; docs/failure-levels.md says how for other servers.",
        )
    elif stream.max_bytes > 0 and stream.used_bytes > FULL_WARNING * stream.max_bytes:
        yield warn(f"{kept}; the oldest go before their time", "Raise the stream's max_bytes.")
    else:
        yield ok(kept)
    if not stream.takes_again:
        yield warn(
            "PM_EVENTS doesn't take events that are sent again: those that it misses are lost, and not counted",
            f"As the server's owner, add the subject {OWED_SUBJECTS} to it, and a subject transform of {OWED_SUBJECTS} "
            f"to {EVENT_SUBJECTS}.",
        )
    yield from _losses(facts.lost)
    if stream.lags is None:
        yield warn("the backlog of the readers of PM_EVENTS is unknown", "Log in as the operator.")
        return
    for name, lag in stream.lags.items():
        if lag > LAG_WARNING:
            yield warn(f"the reader {name!r} of PM_EVENTS is {lag:,} events behind", "Is it running, and fast enough?")


def _losses(lost: Sequence[LostSum]) -> Iterator[DiagnosisLine]:
    if not lost:
        return
    named = ", ".join(f"{each.count:,} {each.type}" for each in lost)
    earliest, latest = min(each.from_ms for each in lost), max(each.to_ms for each in lost)
    yield warn(
        f"{counted(sum(each.count for each in lost), 'event')} never reached PM_EVENTS, between {moment(earliest)} and "
        f"{moment(latest)}: {named}",
        "Their publishers couldn't hold them until the stream took events again (POINTSMAN_EVENTS_KEPT), or were "
        "killed. A request whose response.completed is among them has no usage record.",
    )


def _no_stream(facts: Facts) -> DiagnosisLine:
    if facts.refused:
        return warn("the stream PM_EVENTS can't be read", "Log in as the operator.")
    what = "the stream PM_EVENTS doesn't exist: no event is stored"
    if all(heard.presence.service == AGENT for heard in facts.services):
        return warn(what, "Every service except the agents creates it when it is missing; no such service is heard.")
    return fail(
        what,
        "Every service except the agents creates it when it connects, and a recorder whenever it is missing; "
        "their logs say why they couldn't (jetstream_unavailable).",
    )


def _configuration(facts: Facts) -> Iterator[DiagnosisLine]:
    if facts.config_problem is not None:
        yield fail(
            f"the stored configuration: {facts.config_problem}", "Apply a valid one: `pointsman config apply FILE`."
        )
    elif facts.config is not None:
        yield ok(f"configuration revision {facts.revision}, policy {facts.config.policy_hash()}")


def _discovery(facts: Facts) -> Iterator[DiagnosisLine]:
    """Whether clusters and files list the endpoints of their pools. A problem may affect one metrics-collector
    alone."""
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
            yield warn(f"pool {name}: {where} wasn't looked at yet", "Is a metrics-collector running, in this version?")
        problems = [(source, found.problem) for source, found in told if found.problem]
        for source, problem in problems:
            yield fail(f"pool {name}: {where}, as {source} sees it: {problem}", advice[pool.discovery])
        if told and not problems:
            count = told[-1][1].endpoints
            yield ok(f"pool {name}: {where} is read and names {count} endpoint{'' if count == 1 else 's'}")


def _pools(facts: Facts) -> Iterator[DiagnosisLine]:
    seen = {snapshot.pool: snapshot for snapshot in facts.pools}
    for name, pool in (facts.config.pools if facts.config is not None else {}).items():
        snapshot = seen.get(name)
        if snapshot is None:
            yield fail(f"pool {name}: no snapshot of it is heard", "A metrics-collector publishes it; is one running?")
            continue
        serving = [worker for worker in snapshot.workers if worker.state == "serving"]
        others = [_state(worker) for worker in snapshot.workers if worker.state != "serving"]
        unreached = {engine: why for each in facts.pools if each.pool == name for engine, why in each.unreached.items()}
        others += [f"{engine} has never answered: {why}" for engine, why in sorted(unreached.items())]
        words = f"pool {name}: {len(serving)} of {len(snapshot.workers)} workers serve {', '.join(snapshot.models)}"
        if not serving and any(worker.state == "not_ready" for worker in snapshot.workers):
            yield warn(f"pool {name}: no worker is ready, so all of them get requests ({', '.join(others)})", _UNREADY)
        elif not serving:
            yield fail(
                f"pool {name}: no worker serves" + (f" ({', '.join(others)})" if others else ""),
                _MISSING[pool.discovery],
            )
        elif others:
            yield warn(f"{words}; {', '.join(others)}", _ILL[pool.discovery])
        else:
            yield ok(words)


def _workers(facts: Facts) -> Iterator[DiagnosisLine]:
    for name, pool in (facts.config.pools if facts.config is not None else {}).items():
        views = worker_findings.seen_in(name, facts.pools)
        yield from worker_findings.judged(name, views)
        yield from worker_findings.unknown_loads(name, views)
        yield from worker_findings.reported_faults(name, views)
        yield from worker_findings.other_models(name, pool.models, views)


def _state(worker: WorkerView) -> str:
    return f"{worker.worker} {worker.state.replace('_', ' ')}" + (f": {worker.reason}" if worker.reason else "")


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
