"""The facts that `pointsman doctor` collected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.usage import LostSum
from pointsman_core.config import Config

SILENT: Final = "it doesn't answer"
"""The problem of a JetStream that doesn't answer on a server that does."""


@dataclass(frozen=True)
class NatsFacts:
    """The NATS server."""

    url: str
    version: str
    round_trip_ms: float
    max_payload: int
    tls: bool
    auth_required: bool
    loopback: bool


@dataclass(frozen=True)
class StreamFacts:
    """The stream of events."""

    messages: int
    used_bytes: int
    max_bytes: int
    max_age_s: float
    replicas: int
    lags: Mapping[str, int] | None = field(default_factory=dict[str, int])
    """Durable reader → events not yet delivered to it; None when the server doesn't report it."""
    unkept: int = 0
    """Events that were heard while the stream took none."""
    takes_again: bool = True
    """Whether it takes events that are sent again."""


@dataclass(frozen=True)
class Heard:
    """An instance that was heard, and by how much its clock differs at most, in ms (positive: it is ahead)."""

    presence: ServicePresence
    skew_ms: float


@dataclass(frozen=True)
class Facts:
    """Everything that was seen."""

    server: NatsFacts
    refused: Sequence[str] = ()
    """The server's permission errors, in its words."""
    jetstream: str | None = None
    """Why JetStream can't be used; None when it can."""
    disk: str | None = None
    """Why JetStream can't write to its disk; None when it can, or when that isn't known."""
    stream: StreamFacts | None = None
    config: Config | None = None
    revision: int = 0
    config_problem: str | None = None
    services: Sequence[Heard] = ()
    lost: Sequence[LostSum] = ()
    """Events that a recorder misses, by type."""
    pools: Sequence[PoolSnapshot] = ()
    """The last of each metrics-collector."""
