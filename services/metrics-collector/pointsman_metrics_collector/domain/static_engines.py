"""Engines without an agent: which the configuration names, and which this collector speaks for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pointsman_core.config import Config
from pointsman_engines.report import Worker
from pointsman_metrics_collector.domain.ownership import owner

Key = tuple[str, str]
"""Pool and worker."""


@dataclass(frozen=True, slots=True)
class StaticEngine:
    """One engine of the configuration."""

    worker: Worker
    engine: str | None
    """Its kind; None to tell by its metrics."""
    metrics_url: str | None


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do so that the right engines are spoken for."""

    hand_over: tuple[Key, ...] = ()
    """Fall silent: another collector speaks for them, or they are spoken for anew."""
    remove: tuple[Key, ...] = ()
    """Fall silent and remove the registration: the configuration doesn't name them any more."""
    start: tuple[Key, ...] = ()


def static_engines(config: Config) -> dict[Key, StaticEngine]:
    """Every engine that the configuration lists by URL."""
    return {
        (pool_name, engine.worker): StaticEngine(
            worker=Worker(
                pool=pool_name,
                worker=engine.worker,
                url=engine.url.rstrip("/"),
                role=engine.role,
                labels=engine.labels,
                models=tuple(model for model in pool.models if model not in pool.loras),
            ),
            engine=None if engine.engine == "auto" else engine.engine,
            metrics_url=engine.metrics_url,
        )
        for pool_name, pool in config.pools.items()
        for engine in pool.engines
    }


def steps(
    spoken_for: Mapping[Key, StaticEngine],
    named: Mapping[Key, StaticEngine],
    instance: str,
    instances: Collection[str],
) -> Steps:
    """From what this instance speaks for to what it should; `instances` are the living collectors, itself included."""
    mine = {key for key in named if owner(*key, instances) == instance}
    changed = {key for key in mine & spoken_for.keys() if spoken_for[key] != named[key]}
    return Steps(
        hand_over=tuple(key for key in spoken_for if key in named and (key not in mine or key in changed)),
        remove=tuple(key for key in spoken_for if key not in named),
        start=tuple(key for key in named if key in mine and (key not in spoken_for or key in changed)),
    )
