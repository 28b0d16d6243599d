"""Makes an engine's messages on the bus: its registration and its load. Pure."""

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.worker import DrainNotice, WorkerLoad, WorkerRegistration
from pointsman_engines.status import EngineStatus, reason_of, state_of

UNKNOWN_AGE_MS: Final = 3_600_000
"""Age that a report without figures states. A scheduler that doesn't know `WorkerLoad.load_unknown` then takes none of
its requests for contained in it."""


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
    kv_block_tokens: int | None = None
    """Tokens in the blocks by which KV events are reported; None when none are."""
    server: str | None = None
    """Common name of the ranks of one engine. This and the next three fields are those of `WorkerRegistration`."""
    rank: int | None = None
    rank_field: str | None = None
    ranks: int | None = None


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
        kv_block_tokens=worker.kv_block_tokens,
        kv_blocks=facts.cache.kv_blocks,
        max_context=facts.served.max_context,
        data_parallel_size=facts.cache.ranks,
        server=worker.server,
        rank=worker.rank,
        rank_field=None if worker.rank is None else worker.rank_field,
        ranks=worker.ranks,
        boot_id=status.boot_id,
        agent=agent,
        version=version,
        registered_ms=registered_ms,
    )


def load_of(
    worker: ReportedWorker,
    status: EngineStatus,
    sequence: int,
    *,
    draining: DrainNotice | None = None,
    wake_failed: str = "",
    named: bool = False,
    now_ms: int,
) -> WorkerLoad | None:
    """The load report; None before the engine answered for the first time, or was asked where its pool has `named`
    it."""
    if not status.boot_id and not (named and status.asked):
        return None
    state = state_of(status, draining=draining is not None) if status.boot_id else "unreachable"
    report = WorkerLoad(
        worker=worker.worker,
        pool=worker.pool,
        boot_id=status.boot_id,
        sequence=sequence,
        at_ms=status.read_at_ms,
        state=state,
        reason="" if state == "draining" else reason_of(status),
        draining=draining,
        wake_failed=wake_failed if state == "asleep" else "",
    )
    load = status.known_load
    if load is None:
        unknown = status.load_unknown or status.reason
        return replace(report, load_unknown=unknown, age_ms=UNKNOWN_AGE_MS) if status.boot_id else report
    return replace(
        report,
        age_ms=max(0, now_ms - status.read_at_ms),
        running=load.running,
        waiting=load.waiting,
        kv_usage=load.kv_usage,
        running_loras=load.running_loras,
        waiting_loras=load.waiting_loras,
        max_loras=load.max_loras,
        worked_tokens=load.worked,
    )
