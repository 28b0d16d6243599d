"""Wiring of the metrics-collector."""

import asyncio
from typing import TYPE_CHECKING

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
    handlers = Handlers(service.bus, service.heartbeat, announcer, responses.count, asyncio.get_running_loop().time)
    configuration = service.configuration(check)
    configuration.on_change(handlers.configured)
    service.registry.register(WorkerMetrics(handlers.pools, handlers.changes))
    service.readiness.add("workers", lambda: handlers.missing)
    service.bus.listen(ResponseCompleted, handlers.completed, ANY)
    bucket = service.workers_bucket()
    workers = WorkerRegistry(service.bus, bucket, handlers.registered, handlers.left, on_announced=handlers.announced)

    def load(report: WorkerLoad) -> None:
        workers.reported(report)
        handlers.load(report)

    def tick() -> None:
        workers.tick()
        handlers.tick()

    service.bus.listen(WorkerLoad, load, ANY, ANY, keep="latest")
    service.bus.listen(WorkerVerdicts, handlers.judged, ANY)
    service.every(TICK_S, tick)

    session = engine_session()
    service.on_stop(session.close)
    speakers = EngineSpeakers(service.bus, bucket, session, lambda: handlers.engines, handlers.collectors)
    service.registry.register(EngineMetrics(speakers.all))
    service.events.on_connected(speakers.renew)

    def found(pool: str, finding: EngineSource) -> None:
        handlers.found(pool, finding)
        speakers.changed()

    files, cluster = EndpointFiles(found), Cluster(_connect, found)
    configuration.on_change(lambda revision: files.configured(revision.config))
    configuration.on_change(lambda revision: cluster.configured(revision.config))
    service.registry.register(DiscoveryMetrics(lambda: handlers.findings))
    pools = service.bucket(POOLS_BUCKET)
    rules = RulesBucket(
        pools, lambda: handlers.findings, cluster.pools, service.bus.process.instance, handlers.collectors
    )

    async def list_workers() -> None:
        pools.watch(rules.put, rules.gone, rules.listed)
        await workers.begin()
        handlers.listed()

    service.on_start(list_workers)
    service.background("engines", speakers.run)
    service.background("cluster", cluster.run)
    service.background("files", files.supervise)
    service.background("rules", rules.run)
    service.on_stop(files.stop)
    service.on_stop(speakers.stop)


PROGRAM = Program("metrics-collector", MetricsCollectorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
