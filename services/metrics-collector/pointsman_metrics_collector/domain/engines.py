"""Engines without an agent, and the share of them that this collector reports for."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pointsman_core.config import Config, EngineTls, Pool, StaticEngine
from pointsman_core.plugins import unknown
from pointsman_engines.dialect import AUTO, ENGINES
from pointsman_engines.report import ReportedWorker
from pointsman_engines.status import OPAQUE
from pointsman_metrics_collector.domain.ownership import owner

KINDS: Final = (AUTO, *ENGINES, OPAQUE)
"""The valid values of `engine` in an entry."""

Key = tuple[str, str]
"""Pool and worker."""


@dataclass(frozen=True, slots=True)
class ScrapedEngine:
    """One engine without an agent."""

    worker: ReportedWorker
    engine: str | None = None
    """Its kind; None: found from its metrics."""
    metrics_url: str | None = None
    health: str | None = None
    """Path of the health check of an `opaque` endpoint."""
    tls: EngineTls | None = None
    """Its pool's."""
    draining: bool = field(default=False, compare=False)
    """It finishes its open requests and takes no new ones."""
    moves_at: float | None = field(default=None, compare=False)
    """When its open requests move to other engines, in unix seconds; None: they may end there."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The changes after which the collector reports for the right engines."""

    hand_over: tuple[Key, ...] = ()
    """Fall silent: another collector speaks for them, or they are spoken for anew."""
    remove: tuple[Key, ...] = ()
    """Stop reporting and remove the registration: no pool names them any more."""
    start: tuple[Key, ...] = ()


def listed_engines(config: Config) -> dict[Key, ScrapedEngine]:
    """Every engine that the configuration lists by URL."""
    found: dict[Key, ScrapedEngine] = {}
    for name, pool in config.pools.items():
        found |= engines_of(name, pool, pool.engines)
    return found


def engines_of(pool_name: str, pool: Pool, engines: Iterable[StaticEngine]) -> dict[Key, ScrapedEngine]:
    """Engines of one pool, by their entries in the configuration or in an endpoint file."""
    return {
        (pool_name, entry.worker_name): ScrapedEngine(
            worker=ReportedWorker(
                pool=pool_name,
                worker=entry.worker_name,
                url=entry.url.rstrip("/"),
                role=entry.role,
                labels=entry.labels,
                models=base_models(pool),
            ),
            engine=kind(entry.engine),
            metrics_url=entry.metrics_url,
            health=entry.health,
            tls=pool.tls,
        )
        for entry in engines
    }


def base_models(pool: Pool) -> tuple[str, ...]:
    """The models of an engine of the pool that lists none itself."""
    return tuple(model for model in pool.models if model not in pool.loras)


def kind(engine: str) -> str | None:
    """The kind of an entry; None when it is found from the metrics. Raises ValueError for an unknown kind."""
    if engine not in KINDS:
        raise ValueError(unknown("kind of engine", engine, KINDS))
    return None if engine == AUTO else engine


def steps(
    spoken_for: Mapping[Key, ScrapedEngine],
    named: Mapping[Key, ScrapedEngine],
    instance: str,
    instances: Callable[[str], Collection[str]],
) -> Steps:
    """The steps from the engines that this instance reports for to those that it should; `instances(pool)` are the
    collectors that share the pool's engines."""
    sharing = {pool: instances(pool) for pool in {pool for pool, _ in named}}
    mine = {key for key in named if owner(*key, sharing[key[0]]) == instance}
    changed = {key for key in mine & spoken_for.keys() if spoken_for[key] != named[key]}
    return Steps(
        hand_over=tuple(key for key in spoken_for if key in named and (key not in mine or key in changed)),
        remove=tuple(key for key in spoken_for if key not in named),
        start=tuple(key for key in named if key in mine and (key not in spoken_for or key in changed)),
    )
