"""Makes an engine's messages on the bus: its registration and its load. Pure."""

from dataclasses import dataclass, field

from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_engines.status import EngineStatus


@dataclass(frozen=True, slots=True)
class ReportedWorker:
    """An engine under its name in a pool."""

    pool: str
    worker: str
    """Unique within the pool."""
    url: str
    """Base URL by which edges reach it."""
    role: str = "both"
    labels: dict[str, str] = field(default_factory=dict[str, str])
    models: tuple[str, ...] = ()
    """The models of an engine that lists none itself."""


def registration_of(
    worker: ReportedWorker, status: EngineStatus, *, agent: str, version: str, registered_ms: int
) -> WorkerRegistration | None:
    """The registration by the service instance `agent`; None before the engine has reported its models in this life."""
    facts = status.facts
    if facts is None or not status.boot_id:
        return None
    return WorkerRegistration(
        worker=worker.worker,
        pool=worker.pool,
        url=worker.url,
        engine=facts.engine,
        engine_version=facts.version,
        models=facts.served.models or worker.models,
        loras=facts.served.loras,
        role=worker.role,
        labels=worker.labels,
        block_tokens=facts.cache.block_tokens,
        kv_blocks=facts.cache.kv_blocks,
        max_context=facts.served.max_context,
        data_parallel_size=facts.cache.ranks,
        boot_id=status.boot_id,
        agent=agent,
        version=version,
        registered_ms=registered_ms,
    )


def state_of(status: EngineStatus, *, draining: bool = False) -> str:
    """See `WorkerLoad.state`; for an engine that has answered before."""
    return "unreachable" if not status.reachable else "draining" if draining else "serving"


def load_of(
    worker: ReportedWorker,
    status: EngineStatus,
    sequence: int,
    *,
    draining: bool = False,
    named: bool = False,
    now_ms: int,
) -> WorkerLoad | None:
    """The load report; None before the engine answered for the first time, or was asked where its pool has `named`
    it."""
    reading = status.reading
    if reading is None:
        if not named or not status.asked:
            return None
        return WorkerLoad(
            worker=worker.worker,
            pool=worker.pool,
            boot_id="",
            sequence=sequence,
            at_ms=status.read_at_ms,
            state="unreachable",
            reason=status.reason,
        )
    return WorkerLoad(
        worker=worker.worker,
        pool=worker.pool,
        boot_id=status.boot_id,
        sequence=sequence,
        at_ms=status.read_at_ms,
        age_ms=max(0, now_ms - status.read_at_ms),
        state=state_of(status, draining=draining),
        reason="" if status.reachable else status.reason,
        running=reading.running,
        waiting=reading.waiting,
        kv_usage=reading.kv_usage,
        running_loras=reading.running_loras,
        waiting_loras=reading.waiting_loras,
        max_loras=reading.max_loras,
    )
