"""A recorded stretch of one pool's traffic: the input of the twin. Times are ms since the recording began."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman_core.config import SchedulingPolicy


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request that an engine got."""

    arrived_ms: float
    """When the scheduler got it."""
    sent_ms: float
    """When it was bound to an engine; later than the arrival for one that waited."""
    engine: str
    prompt_tokens: int
    blocks: list[int]
    """Hashes of the full prompt blocks, of `RecordedPool.block_tokens` tokens each."""
    output_tokens: int = 0
    """Tokens of the answer; 0 when unknown."""
    max_tokens: int | None = None
    """The client's limit on the answer."""
    lora: str | None = None
    streamed: bool = True
    first_ms: float | None = None
    """When the first byte of its answer came; None for an answer that wasn't streamed."""
    ended_ms: float | None = None
    """When the answer ended; None when that isn't recorded."""
    ok: bool = True
    """Whether the answer was complete, from the engine that it was sent to first."""
    seed: int | None = None
    """The decision's seed: it settles ties and random choices. None when unknown."""

    @property
    def ttft_ms(self) -> float:
        """From the arrival; NaN when unknown."""
        return math.nan if self.first_ms is None else self.first_ms - self.arrived_ms

    @property
    def e2e_ms(self) -> float:
        """From the arrival to the end; NaN when unknown."""
        return math.nan if self.ended_ms is None else self.ended_ms - self.arrived_ms

    @property
    def is_judged(self) -> bool:
        """Whether its times say anything about the engine."""
        return self.ok and self.ended_ms is not None and self.output_tokens > 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's reports about itself."""

    at_ms: float
    running: int
    waiting: int
    kv_usage: float
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """One engine of the pool."""

    name: str
    models: tuple[str, ...] = ()
    kv_tokens: int | None = None
    """Tokens that its KV cache has room for, as registered."""
    kind: str = ""
    """Engines of one kind are fitted together: software, version, role and labels."""
    max_loras: int = 0
    reports: tuple[LoadReport, ...] = ()
    kv_events: bool = False
    """Whether schedulers heard of each change of its cache."""


@dataclass(frozen=True, slots=True)
class FleetChange:
    """The fleet or its policy changed in the middle of the recording."""

    at_ms: float
    what: str
    """E.g. `engine-3 restarted`."""


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """One pool's traffic as its schedulers recorded it."""

    pool: str
    block_tokens: int
    engines: tuple[RecordedEngine, ...]
    requests: Sequence[RecordedRequest]
    """In order of arrival."""
    began_unix_ms: float = 0.0
    policy_name: str = ""
    """The name of the scheduling section that was in force."""
    policy: SchedulingPolicy | None = None
    """None when the log doesn't have it."""
    changes: tuple[FleetChange, ...] = ()
    warm: bool = False
    """Whether engines had served requests before it began: what their caches held then isn't known."""
    lost: int = 0
    """Inputs that the log lacks."""
    elsewhere: int = 0
    """Requests of the pool that no engine got: rejected, or answered before."""

    @property
    def span_ms(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrived_ms - self.requests[0].arrived_ms if self.requests else 0.0

    def find_engine(self, name: str) -> RecordedEngine:
        """KeyError for an engine that isn't in the log."""
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)
