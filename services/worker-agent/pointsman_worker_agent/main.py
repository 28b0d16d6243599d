"""Wiring of the worker-agent."""

import argparse
import os

from pointsman_contracts.demand import WakeOrder
from pointsman_contracts.draining import DrainOrder
from pointsman_engines.client import engine_session
from pointsman_engines.engine_metrics import EngineMetrics
from pointsman_engines.speaker import EngineSpeaker
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_worker_agent.handlers import Handlers
from pointsman_worker_agent.name_claimer import TURN_S, NameClaimer
from pointsman_worker_agent.settings import WorkerAgentSettings
from pointsman_worker_agent.waker import CHECK_S, EngineWaker


def build(service: Service[WorkerAgentSettings]) -> None:
    """Construct everything; connect to nothing."""
    service.keeps_events = False
    settings = service.settings
    session = engine_session()
    service.on_stop(session.close)
    entries = service.workers_bucket(make=False)
    speaker = EngineSpeaker(service.bus, entries, session, settings.described(), settings.engine_access())
    service.events.on_connected(speaker.renew_registrations)
    service.registry.register(EngineMetrics(lambda: [speaker]))
    service.readiness.add_check("engine", lambda: speaker.problem)

    endpoints = settings.kv_endpoints()
    if endpoints is not None:
        # ZeroMQ and its codec are loaded where an engine publishes KV events.
        from pointsman_worker_agent.kv_wiring import tell_kv_events

        tell_kv_events(service, speaker, endpoints)

    if settings.pd_sidecar is not None:
        # A web server, for the few agents that are one.
        from pointsman_worker_agent.pd_wiring import serve_pd

        serve_pd(service, speaker, settings.pd_sidecar)

    names = NameClaimer(service.bus, speaker)
    service.events.on_connected(names.publish_claim)
    service.every(TURN_S, names.decide_speaker)
    handlers = Handlers(speaker, names, settings.drain_timeout_s)
    waker = EngineWaker(speaker, service.registry)
    service.bus.listen(DrainOrder, handlers.take_order, speaker.worker.pool, speaker.worker.worker)
    service.bus.listen(WakeOrder, waker.take_order, speaker.worker.pool, speaker.worker.worker)
    service.every(CHECK_S, waker.check_engine)
    service.on_stop(waker.close)
    service.drained.add_check("engine", handlers.why_undrained)
    service.on_start(handlers.start)
    service.run_in_background("engine", handlers.supervise)
    service.on_stop(handlers.drain)


PROGRAM = Program("worker-agent", WorkerAgentSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    parser = argparse.ArgumentParser(prog="pointsman-worker-agent", description="Speaks for one engine.")
    parser.add_argument("--pd-sidecar", metavar="HOST:PORT", help="as POINTSMAN_PD_SIDECAR")
    sidecar: str | None = parser.parse_args().pd_sidecar
    if sidecar is not None:
        os.environ["POINTSMAN_PD_SIDECAR"] = sidecar
    return run(PROGRAM)
