"""The doctor's findings from its observations."""

from dataclasses import replace

import msgspec
import pytest

from pointsman_cli.doctor.diagnosis import findings
from pointsman_cli.doctor.facts import SILENT, Facts, Heard, NatsFacts, StreamFacts
from pointsman_cli.doctor.finding import Level
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolDiscovery, PoolSnapshot, WorkerView
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.usage import LostSum
from pointsman_core.config import load

MIB = 2**20
NOON_MS = 1_772_366_400_000
"""Of 1 March 2026."""
CONFIG = load({"pools": {"llama": {"models": ["m"]}}})


def _presence(service: str, **changes: object) -> ServicePresence:
    facts: dict[str, object] = {
        "service": service, "instance": f"{service}-1", "sequence": 1, "at_ms": 0, "version": "0.1.0", "revision": 3,
    }  # fmt: skip
    return read_fields(ServicePresence, {**facts, **changes})


def _pool(*states: str) -> PoolSnapshot:
    workers = tuple(WorkerView(worker=f"w{n}", url="http://w", state=state) for n, state in enumerate(states))
    return PoolSnapshot(pool="llama", source="c", sequence=1, at_ms=0, workers=workers, models=("m",))


STREAM = StreamFacts(messages=10, used_bytes=1000, max_bytes=10**9, max_age_s=86400, replicas=1)
HEALTHY = Facts(
    server=NatsFacts("nats://127.0.0.1:4222", "2.15.1", 0.3, 8 * MIB, tls=False, auth_required=False, loopback=True),
    stream=STREAM,
    config=CONFIG,
    revision=3,
    services=[
        Heard(_presence(service), 1.0)
        for service in ("frontend", "preprocessor", "profile-picker", "scheduler", "metrics-collector", "recorder")
    ],
    pools=[_pool("serving", "serving")],
)


def _bad(facts: Facts) -> list[tuple[Level, str]]:
    return [(finding.level, finding.what) for finding in findings(facts) if finding.level is not Level.OK]


def test_a_healthy_system_has_no_finding_but_good_ones() -> None:
    assert _bad(HEALTHY) == []
    assert len(findings(HEALTHY)) >= 10


def _without(*services: str) -> Facts:
    return replace(HEALTHY, services=[heard for heard in HEALTHY.services if heard.presence.service not in services])


@pytest.mark.requirement("S1-5")
@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("guard", contracts=(3, 4), ready=False), 0)]),
            Level.FAIL,
            "these share no generation of the contracts: frontend 0.1.0, metrics-collector 0.1.0, preprocessor 0.1.0, "
            "profile-picker 0.1.0, recorder 0.1.0, scheduler 0.1.0 (generation 1) and guard 0.1.0 (generation 3 to 4)",
        ),
        (
            replace(
                HEALTHY,
                lost=[
                    LostSum(type="request.scheduled.v1", count=30, from_ms=1_772_366_405_000, to_ms=1_772_366_410_000),
                    LostSum(
                        type="response.completed.v1", count=1200, from_ms=1_772_366_400_000, to_ms=1_772_366_409_000
                    ),
                ],
            ),
            Level.WARN,
            "1,230 events never reached PM_EVENTS, between 2026-03-01 12:00:00 UTC and 2026-03-01 12:00:10 UTC: "
            "30 request.scheduled.v1, 1,200 response.completed.v1",
        ),
        (
            replace(HEALTHY, stream=replace(STREAM, takes_again=False)),
            Level.WARN,
            "PM_EVENTS doesn't take events that are sent again: those that it misses are lost, and not counted",
        ),
        (
            replace(HEALTHY, server=replace(HEALTHY.server, max_payload=MIB // 2)),
            Level.FAIL,
            "max_payload is 512 KiB, too small for the messages of this gateway",
        ),
        (
            replace(HEALTHY, server=replace(HEALTHY.server, version="2.9.25")),
            Level.FAIL,
            "nats-server 2.9.25 is too old",
        ),
        (
            replace(HEALTHY, server=replace(HEALTHY.server, loopback=False)),
            Level.FAIL,
            "the server accepts clients without a login, and is reachable from other hosts",
        ),
        (
            replace(HEALTHY, server=replace(HEALTHY.server, loopback=False, auth_required=True)),
            Level.WARN,
            "the connection isn't encrypted",
        ),
        (
            replace(HEALTHY, refused=["Permissions Violation for X"]),
            Level.WARN,
            "not permitted: Permissions Violation for X",
        ),
        (replace(HEALTHY, jetstream="not enabled"), Level.FAIL, "JetStream can't be used: not enabled"),
        (
            replace(HEALTHY, disk="error creating store for stream"),
            Level.FAIL,
            "JetStream can't write to its disk: error creating store for stream",
        ),
        (
            replace(HEALTHY, stream=replace(STREAM, unkept=7)),
            Level.FAIL,
            "PM_EVENTS takes no events: 7 came just now, and none was stored",
        ),
        (replace(HEALTHY, stream=None), Level.FAIL, "the stream PM_EVENTS doesn't exist: no event is stored"),
        (
            replace(HEALTHY, stream=None, services=[Heard(_presence("worker-agent"), 0)]),
            Level.WARN,
            "the stream PM_EVENTS doesn't exist: no event is stored",
        ),
        (
            replace(HEALTHY, stream=None, refused=["Permissions Violation for X"]),
            Level.WARN,
            "the stream PM_EVENTS can't be read",
        ),
        (
            replace(HEALTHY, stream=StreamFacts(10, 5, 100, 0, 1, None)),
            Level.WARN,
            "the backlog of the readers of PM_EVENTS is unknown",
        ),
        (
            replace(HEALTHY, config=None, config_problem="none is stored"),
            Level.FAIL,
            "the stored configuration: none is stored",
        ),
        (
            _without("scheduler"),
            Level.FAIL,
            "no scheduler is heard, and the profile standard needs one",
        ),
        (
            _without("frontend"),
            Level.FAIL,
            "neither a frontend nor an epp-adapter is heard: no request can enter",
        ),
        (
            _without("recorder"),
            Level.WARN,
            "no recorder is heard: usage isn't counted, and events are kept by the stream alone",
        ),
        (
            replace(
                HEALTHY,
                services=[
                    *_without("metrics-collector").services,
                    Heard(_presence("metrics-collector", ready=False), 0),
                ],
            ),
            Level.FAIL,
            "metrics-collector: none of 1 is ready",
        ),
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("scheduler", instance="s2", revision=2), 0)]),
            Level.WARN,
            "scheduler runs configuration revision 2, not 3",
        ),
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("scheduler", version="0.2.0"), 0)]),
            Level.WARN,
            "several versions run: 0.1.0, 0.2.0",
        ),
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("frontend", descriptors=1024), 0)]),
            Level.WARN,
            "frontend frontend-1 may have 1024 files and connections open at a time: about 512 requests",
        ),
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("worker-agent"), 400.0)]),
            Level.WARN,
            "the clock of worker-agent worker-agent-1 is 400 ms ahead",
        ),
        (
            replace(HEALTHY, services=[*HEALTHY.services, Heard(_presence("worker-agent"), -5000.0)]),
            Level.FAIL,
            "the clock of worker-agent worker-agent-1 is 5000 ms behind: its messages expire too early, or too late",
        ),
        (replace(HEALTHY, pools=[]), Level.FAIL, "pool llama: no snapshot of it is heard"),
        (replace(HEALTHY, pools=[_pool("silent")]), Level.FAIL, "pool llama: no worker serves (w0 silent)"),
        (
            replace(HEALTHY, pools=[_pool("serving", "draining")]),
            Level.WARN,
            "pool llama: 1 of 2 workers serve m; w1 draining",
        ),
        (
            replace(HEALTHY, stream=StreamFacts(10, 95, 100, 0, 1)),
            Level.WARN,
            "PM_EVENTS keeps events: 10 in 95 B of 100 B; the oldest go before their time",
        ),
        (
            replace(HEALTHY, stream=StreamFacts(10, 5, 100, 0, 1, {"audit": 200_000})),
            Level.WARN,
            "the reader 'audit' of PM_EVENTS is 200,000 events behind",
        ),
    ],
)
def test_each_ailment_is_named_with_a_remedy(facts: Facts, level: Level, words: str) -> None:
    bad = [finding for finding in findings(facts) if finding.level is not Level.OK]
    assert (level, words) in [(finding.level, finding.what) for finding in bad]
    assert all(finding.advice for finding in bad)


def test_behind_envoy_the_adapter_is_edge_enough() -> None:
    behind = _without("frontend")
    assert _bad(replace(behind, services=[*behind.services, Heard(_presence("epp-adapter"), 0)])) == []


def test_a_cluster_or_file_that_is_not_read_is_said_for_each_collector_that_misses_it() -> None:
    kubernetes = load({"pools": {"llama": {"discovery": "kubernetes", "kubernetes": {"inference_pool": "ip"}}}})
    file = load({"pools": {"llama": {"discovery": "file", "file": "/endpoints.yaml"}}})

    def seen(source: str, kind: str, problem: str = "") -> PoolSnapshot:
        discovery = PoolDiscovery(kind=kind, problem=problem, endpoints=2)
        return msgspec.structs.replace(_pool("serving", "serving"), source=source, discovery=discovery)

    good = replace(HEALTHY, config=kubernetes, pools=[seen("c-1", "kubernetes"), seen("c-2", "kubernetes")])
    assert _bad(good) == []
    assert "pool llama: the Kubernetes cluster is read and names 2 endpoints" in [each.what for each in findings(good)]
    cut_off = replace(good, pools=[seen("c-1", "kubernetes"), seen("c-2", "kubernetes", "it isn't reached")])
    assert _bad(cut_off) == [
        (Level.FAIL, "pool llama: the Kubernetes cluster, as c-2 sees it: it isn't reached"),
    ]  # fmt: skip
    broken = replace(good, config=file, pools=[seen("c-1", "file", "/endpoints.yaml: not valid YAML (line 3)")])
    assert "not valid YAML (line 3)" in _bad(broken)[0][1]
    assert _bad(replace(good, pools=[_pool("serving")]))[0][0] is Level.WARN


def test_a_silent_jetstream_is_not_taken_for_one_that_is_not_configured() -> None:
    (finding,) = [each for each in findings(replace(HEALTHY, jetstream=SILENT)) if "JetStream" in each.what]
    assert "jetstream {}" not in finding.advice
    assert "Requests go on" in finding.advice


@pytest.mark.parametrize(
    ("discovery", "advice"),
    [
        ({"discovery": "static", "engines": [{"url": "http://w0:8000"}]}, "The pool's `engines` list them."),
        ({}, "Start an engine and a pointsman-worker-agent beside it"),
    ],
)
def test_a_pool_without_a_serving_worker_says_what_its_kind_of_discovery_needs(
    discovery: dict[str, object], advice: str
) -> None:
    config = load({"pools": {"llama": {"models": ["m"], **discovery}}})
    pool = msgspec.structs.replace(_pool("unreachable"), unreached={"w7": "/health answers 404"})
    (finding,) = [each for each in findings(replace(HEALTHY, config=config, pools=[pool])) if "llama" in each.what]
    assert finding.what == ("pool llama: no worker serves (w0 unreachable, w7 has never answered: /health answers 404)")
    assert finding.advice.startswith(advice)


def test_a_pool_in_which_no_worker_is_ready_is_a_warning_because_all_of_them_serve() -> None:
    (finding,) = [each for each in findings(replace(HEALTHY, pools=[_pool("not_ready")])) if "llama" in each.what]
    assert finding.level is Level.WARN
    assert finding.what == "pool llama: no worker is ready, so all of them get requests (w0 not ready)"


def test_what_a_pool_says_of_a_worker_is_in_the_diagnosis() -> None:
    pool = _pool("serving")
    worker = msgspec.structs.replace(pool.workers[0], load_unknown="/metrics answers 404", opaque=True)
    pool = msgspec.structs.replace(pool, workers=(worker,))
    assert _bad(replace(HEALTHY, pools=[pool])) == [
        (Level.WARN, "pool llama: the load of w0 is unknown: /metrics answers 404")
    ]
