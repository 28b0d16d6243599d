"""Wiring of the metrics-collector."""

import asyncio
from typing import TYPE_CHECKING

from pointsman_contracts.draining import DrainQuery
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_contracts.verdicts import WorkerVerdicts
from pointsman_contracts.worker import WorkerLoad
from pointsman_engines.client import engine_session
from pointsman_engines.engine_metrics import EngineMetrics
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_metrics_collector.adapters.endpoint_files import EndpointFiles
from pointsman_metrics_collector.adapters.engine_speakers import EngineSpeakers
from pointsman_metrics_collector.adapters.kubernetes.cluster import Cluster
from pointsman_metrics_collector.adapters.pool_metrics import DiscoveryMetrics, WorkerMetrics
from pointsman_metrics_collector.adapters.response_metrics import ResponseMetrics
from pointsman_metrics_collector.adapters.rules_bucket import RulesBucket
from pointsman_metrics_collector.announcer import MessageNumbers
from pointsman_metrics_collector.configuration import check
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.handlers import TICK_S, Handlers
from pointsman_metrics_collector.settings import MetricsCollectorSettings
from pointsman_runtime.jetstream.stores import POOLS_BUCKET
from pointsman_runtime.jetstream.worker_registry import WorkerRegistry

if TYPE_CHECKING:
    from pointsman_metrics_collector.adapters.kubernetes.api import KubernetesApi


def _connect() -> "KubernetesApi":
    # The client library takes a third of a second to load: only processes with a cluster load it.
    from pointsman_metrics_collector.adapters.kubernetes.api import connect

    return connect()


def build(service: Service[MetricsCollectorSettings]) -> None:
    """Construct everything; connect to nothing."""
    responses = ResponseMetrics(service.registry)
    announcer = MessageNumbers(service.bus, service.registry)
    handlers = Handlers(
        service.bus, service.heartbeat, announcer, responses.count_completion, asyncio.get_running_loop().time
    )
    configuration = service.configuration(check)
    configuration.on_change(handlers.configured)
    service.registry.register(WorkerMetrics(handlers.pools, handlers.changes))
    service.readiness.add_check("workers", lambda: handlers.missing)
    service.bus.listen(ResponseCompleted, handlers.completed, ANY)
    bucket = service.workers_bucket()
    workers = WorkerRegistry(service.bus, bucket, handlers.registered, handlers.left, on_announced=handlers.announced)

    def load(report: WorkerLoad) -> None:
        workers.receive_load(report)
        handlers.load(report)

    def tick() -> None:
        workers.find_departed()
        handlers.tick()

    service.bus.listen(WorkerLoad, load, ANY, ANY, keep="latest")
    service.bus.listen(WorkerVerdicts, handlers.judged, ANY)
    service.every(TICK_S, tick)

    session = engine_session()
    service.on_stop(session.close)
    speakers = EngineSpeakers(
        bus=service.bus,
        entries=bucket,
        session=session,
        named=lambda: handlers.engines,
        instances=handlers.collectors_of,
        ordered=handlers.drains.find_drain,
    )
    handlers.on_drain_ordered = speakers.check_at_once
    service.events.handle(DrainQuery, handlers.order_drain)
    service.registry.register(EngineMetrics(speakers.active_speakers))
    service.events.on_connected(speakers.renew_registrations)

    def found(pool: str, finding: EngineSource) -> None:
        handlers.found(pool, finding)
        speakers.check_at_once()

    files, cluster = EndpointFiles(found), Cluster(_connect, found)
    configuration.on_change(lambda revision: files.follow_files(revision.config))
    configuration.on_change(lambda revision: cluster.follow_pools(revision.config))
    service.registry.register(DiscoveryMetrics(lambda: handlers.findings))
    pools = service.open_bucket(POOLS_BUCKET)
    rules = RulesBucket(
        pools, lambda: handlers.findings, cluster.list_pools, service.bus.process.instance, handlers.collectors_of
    )

    async def list_workers() -> None:
        pools.watch(rules.note_entry, rules.note_entry_gone, rules.end_listing)
        await workers.follow_workers()
        handlers.listed()

    service.on_start(list_workers)
    service.run_in_background("engines", speakers.run)
    service.run_in_background("cluster", cluster.run)
    service.run_in_background("files", files.supervise)
    service.run_in_background("rules", rules.run)
    service.on_stop(files.stop)
    service.on_stop(speakers.stop)


PROGRAM = Program("metrics-collector", MetricsCollectorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
