"""A configuration revision as the edge runs it."""

from typing import NamedTuple

from pointsman_core.config import Config, Edge
from pointsman_edge.domain.static_choice import StaticPolicy, static_policy


class EngineLimits(NamedTuple):
    """How long an engine may take, in seconds."""

    connect_s: float
    first_byte_s: float
    idle_s: float
    """Between any two bytes of an answer."""


class EdgePolicy(NamedTuple):
    """Compiled once a revision; a request keeps the one that it began with."""

    revision: int
    config: Config
    limits: Edge
    engine: EngineLimits
    static: StaticPolicy


def compile_policy(config: Config, revision: int) -> EdgePolicy:
    """Read the configuration once."""
    edge = config.edge
    engine = EngineLimits(edge.connect_timeout, edge.first_byte_timeout, edge.stream_idle_timeout)
    return EdgePolicy(revision, config, edge, engine, static_policy(config))
