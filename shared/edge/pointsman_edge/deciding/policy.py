"""A configuration revision as the edge runs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pointsman_contracts.journey import Stage
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Config, EdgeSettings, active, response_entry
from pointsman_core.prices import Prices
from pointsman_edge.answer_plugins import build_response_processors
from pointsman_edge.deciding.static_choice import StaticPolicy, static_policy
from pointsman_plugins.responding import ResponseProcessor

_COUNTING: Final = frozenset({"stream-usage", "token-limit", "infra-token-limit"})
"""Preprocessing plugins that need the usage of answers."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How long an engine may take, in seconds."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    """Between any two bytes of an answer."""


@dataclass(frozen=True, slots=True)
class EdgePolicy:
    """Compiled once a revision; a request keeps the one that it began with."""

    revision: int
    config: Config
    limits: EdgeSettings
    engine: EngineLimits
    static: StaticPolicy
    postprocessing: tuple[Stage, ...]
    """Stages that review every answer, errors too."""
    prices: Prices
    response_processors: Mapping[str, tuple[ResponseProcessor, ...]]
    """By profile; those without any are missing."""
    reads_token_ids: frozenset[str]
    """Profiles with a processor that reads the token ids of answers."""
    counts_tokens: bool
    """Whether first token and usage of every answer must be known, even if the client didn't ask for the usage."""


def compile_policy(config: Config, revision: int) -> EdgePolicy:
    """Read the configuration once."""
    edge = config.edge
    engine = EngineLimits(edge.connect_timeout, edge.first_byte_timeout, edge.stream_idle_timeout)
    postprocessing = tuple(
        read_fields(Stage, response_entry(use, config.stages)) for use in active(config.postprocessing)
    )
    counts_tokens = any(use.use in _COUNTING and use.mode != "off" for use in config.preprocessing)
    # Service levels rest on times that are learnt from all answers.
    leveled = any(each.slo is not None for each in (*config.profiles.values(), *config.models.values()))
    processors = build_response_processors(config)
    return EdgePolicy(
        revision=revision,
        config=config,
        limits=edge,
        engine=engine,
        static=static_policy(config),
        postprocessing=postprocessing,
        prices=Prices(config),
        response_processors=processors,
        reads_token_ids=frozenset(
            [name for name, each in processors.items() if any(one.reads_token_ids for one in each)]
        ),
        counts_tokens=counts_tokens or leveled,
    )


def useless_alone(policy: EdgePolicy, pools: Mapping[str, PoolSnapshot], *, providers: bool) -> str | None:
    """Why every request would be refused; None when some are served. `providers`: this edge reaches them."""
    if policy.static.closed is not None:
        return f"the edge may not decide alone because {policy.static.closed}"
    config = policy.config
    if any(snapshot.workers for snapshot in pools.values()) or any(pool.engines for pool in config.pools.values()):
        return None
    return None if providers and config.providers else "no engine is known"
