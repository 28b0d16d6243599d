"""Engines that the stored configuration lists: adding one and taking one out, as changes of the document. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import yaml

from pointsman_cli.config.configuration import written
from pointsman_cli.engines.engines import EngineModels, listed
from pointsman_cli.words import CommandError
from pointsman_core.config import Config
from pointsman_core.plugins import did_you_mean, unknown

_TAKING: Final = ("agents", "static")
"""Ways of discovery beside which a pool may list engines."""


class Change(NamedTuple):
    """A change of the configuration."""

    text: str
    """The whole configuration after it."""
    pool: str
    new: bool = False
    """Whether the pool is made or removed by it."""


def added(text: str, config: Config, engine: EngineModels, pool: str | None) -> Change:
    """The configuration with the engine in a pool: the named one, else the one with most of its models, else a new one.
    CommandError for an engine that is listed already, and for a pool that finds its engines elsewhere."""
    for name, each in config.pools.items():
        if any(entry.url.rstrip("/") == engine.url for entry in each.engines):
            raise CommandError(f"{engine.url} is listed in the pool {name} already.", "`pointsman engines list`")
    if pool is not None and pool not in config.pools:
        raise CommandError(f"--pool {pool}: {unknown('pool', pool, config.pools)}.", "Leave --pool out for a new one.")
    chosen = pool or _fitting(engine, config)
    document = cast("dict[str, dict[str, dict[str, object]]]", yaml.safe_load(text) or {})
    pools = document.setdefault("pools", {})
    if chosen is None:
        name = engine.models[0]
        if name in config.pools:
            raise CommandError(f"the pool {name} exists, but doesn't serve {name}.", "Name the pool with --pool.")
        pools[name] = {
            "models": [*engine.models, *engine.loras],
            **({"loras": list(engine.loras)} if engine.loras else {}),
            "discovery": "static",
            "engines": [listed(engine)],
        }
        return Change(written(cast("dict[str, object]", document)), name, new=True)
    if config.pools[chosen].discovery not in _TAKING:
        raise CommandError(
            f"the pool {chosen} finds its engines by `discovery: {config.pools[chosen].discovery}`.",
            "Add the engine there, or name another pool with --pool.",
        )
    section = pools[chosen] or {}
    section["engines"] = [*cast("Sequence[object]", section.get("engines") or ()), listed(engine)]
    pools[chosen] = section
    return Change(written(cast("dict[str, object]", document)), chosen)


def removed(text: str, config: Config, url: str) -> Change:
    """The configuration without the engine; its pool goes with the last one. CommandError for an engine that no pool
    lists."""
    for name, pool in config.pools.items():
        for position, entry in enumerate(pool.engines):
            if url in (entry.url.rstrip("/"), entry.worker_name):
                return _without(text, name, position, last=len(pool.engines) == 1 and pool.discovery == "static")
    known = [entry.url for pool in config.pools.values() for entry in pool.engines]
    likely = did_you_mean(url, known)
    raise CommandError(
        f"the configuration lists no engine {url}{f'; {likely}' if likely else '.'}",
        "One with an agent, such as those of `up --engine`, leaves when its agent ends; `pointsman engines drain` "
        "takes it out of service.",
    )


def _without(text: str, name: str, position: int, *, last: bool) -> Change:
    document = cast("dict[str, dict[str, dict[str, object]]]", yaml.safe_load(text))
    if last:
        del document["pools"][name]
        return Change(written(cast("dict[str, object]", document)), name, new=True)
    section = document["pools"][name]
    left = list(cast("Sequence[object]", section["engines"]))
    del left[position]
    if left:
        section["engines"] = left
    else:
        del section["engines"]
    return Change(written(cast("dict[str, object]", document)), name)


def _fitting(engine: EngineModels, config: Config) -> str | None:
    """The pool with most of the engine's models."""
    common = {name: len({*engine.models, *engine.loras} & set(pool.models)) for name, pool in config.pools.items()}
    fitting = [name for name in common if common[name]]
    taking = [name for name in fitting if config.pools[name].discovery in _TAKING]
    return max(taking or fitting, key=common.__getitem__, default=None)
