"""Wiring of the scheduler."""

import asyncio
from typing import Final

from pointsman_contracts.fleet import FleetQuery
from pointsman_contracts.journey import Journey
from pointsman_contracts.kv import WorkerKvEvents
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import Reservations, SchedulerStateQuery
from pointsman_contracts.subjects import ANY
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerLoad
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_runtime.jetstream.worker_registry import TICK_S, WorkerRegistry
from pointsman_scheduler.announcer import DecisionPublisher
from pointsman_scheduler.binding import Binding, Chooser
from pointsman_scheduler.configuration import compile_policies
from pointsman_scheduler.demand import DemandPublisher
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.pools import Pools
from pointsman_scheduler.dry_runs import DryRuns
from pointsman_scheduler.fleet_view import FleetViews
from pointsman_scheduler.flight.metrics import FlightMetrics
from pointsman_scheduler.flight.recorder import FlightRecorder
from pointsman_scheduler.gate import Gate
from pointsman_scheduler.handlers import Handlers
from pointsman_scheduler.joint_choice import JointChooser
from pointsman_scheduler.kv_listener import KvListener
from pointsman_scheduler.metrics import SchedulerMetrics
from pointsman_scheduler.outlier_actions import RequestMover, VerdictPublisher
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.reconciler import Reconciler
from pointsman_scheduler.replica import Replica
from pointsman_scheduler.service_levels import ServiceLevels
from pointsman_scheduler.settings import SchedulerSettings

LOOK_AGAIN_S: Final = 0.02


def build(service: Service[SchedulerSettings]) -> None:
    """Construct everything; connect to nothing."""
    book = PolicyBook(registries())
    configuration = service.configuration(lambda config, _revision: compile_policies(book, config))
    settings = service.settings
    flight = FlightRecorder(
        settings.flight_dir,
        None if settings.flight_salt is None else settings.flight_salt.get_secret_value(),
        service.process.version,
        lambda: pools,
        FlightMetrics(service.registry),
    )
    pools = Pools(service.process.instance, settings.prefix_index, flight.record_pool)
    metrics = SchedulerMetrics(service.registry, lambda: pools)
    announcer = DecisionPublisher(service.bus, service.heartbeat, pools, metrics)
    replica = Replica(service.bus, service.heartbeat, pools, metrics)
    chooser = Chooser(configuration, pools, announcer, metrics)
    mover = RequestMover(service.bus, metrics)
    binding = Binding(pools, chooser.decide, announcer, mover.stop_requests)
    joint = JointChooser(
        configuration, pools, metrics.models_chosen, lambda pool, priority: gate.has_room(pool, priority)
    )
    levels = ServiceLevels(configuration, pools, metrics.late, lambda pool, priority: gate.foresee_wait(pool, priority))
    gate = Gate(
        service.heartbeat,
        pools,
        metrics,
        binding,
        lambda journey: levels.hold_to_level(joint.settle_model(journey)),
        demand=DemandPublisher(service.bus, metrics),
    )
    gate.decide_dry_run = DryRuns(configuration, pools, gate.foresee_wait, service.process.instance).decide_dry_run
    handlers = Handlers(pools, gate, replica, metrics, announcer.sessions)
    reconciler = Reconciler(
        bus=service.bus,
        heartbeat=service.heartbeat,
        pools=pools,
        gate=gate,
        announcer=announcer,
        metrics=metrics,
        verdicts=VerdictPublisher(service.bus),
        mover=mover,
    )
    views = FleetViews(
        service.process.instance, pools, lambda pool: configuration.current.compiled.get(pool), gate.figures
    )
    kv = KvListener(service.bus, pools, pools.block_tokens, service.registry)
    metrics.watch_queues(gate.figures)
    configuration.on_change(
        lambda revision: flight.apply_settings({name: pool.flight for name, pool in revision.config.pools.items()})
    )
    configuration.on_change(handlers.configured)

    bus = service.bus
    service.journeys.stage(Journey, gate.enter)
    workers = WorkerRegistry(
        bus,
        service.workers_bucket(),
        handlers.registered,
        handlers.left,
        metrics.malformed.inc,
    )

    def load(report: WorkerLoad) -> None:
        workers.receive_load(report)
        handlers.load(report)

    bus.listen(WorkerLoad, load, ANY, ANY, keep="latest")
    bus.listen(WorkerKvEvents, kv.heard, ANY, ANY)
    bus.listen(Reservations, handlers.reserved, ANY)
    bus.listen(ResponseStarted, handlers.started, ANY)
    bus.listen(AttemptFailed, handlers.failed, ANY)
    bus.listen(ResponseCompleted, handlers.completed, ANY)
    service.every(TICK_S, workers.find_departed)
    service.readiness.add_check(
        "workers", lambda: None if workers.complete else "the registered workers aren't known yet"
    )

    async def list_workers() -> None:
        await workers.follow_workers()
        # A scheduler that knows only one worker would send it everything.
        for _ in range(round(TIMES.loads_within_s / LOOK_AGAIN_S)):
            if all(pool.fleet.heard_of_all for pool in pools):
                break
            await asyncio.sleep(LOOK_AGAIN_S)

    service.events.handle(SchedulerStateQuery, replica.answer_query, service.process.instance)
    service.events.handle(FleetQuery, views.answer_query, service.process.instance)
    service.on_start(list_workers)
    service.on_start(replica.take_over_state)
    service.on_stop(replica.close)
    service.on_stop(mover.close)
    service.on_stop(gate.close)
    service.on_stop(flight.close)
    service.run_in_background("reconciler", reconciler.run)
    service.run_in_background("kv-events", kv.run)
    service.run_in_background("flight", flight.run)


PROGRAM = Program("scheduler", SchedulerSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
