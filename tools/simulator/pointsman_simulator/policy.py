"""The input of a routing policy: no more than a scheduler on the bus sees."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from pointsman_contracts.service_level import ServicePromise

REFUSED: Final = -1
"""In place of a worker: the request is refused."""


@dataclass(frozen=True, slots=True)
class Load:
    """Columns over workers: what each engine last reported."""

    running: list[int]
    waiting: list[int]
    kv_usage: list[float]
    """0 to 1."""
    running_loras: list[tuple[str, ...]]
    """Adapters of running requests."""
    observed: bool = False
    """Whether the policy got each of these reports when it came in, as `Reported`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to place. How long its answer will be is not known."""

    request: int
    at: float
    prompt_tokens: int
    blocks: list[int]
    """Names of its full prompt blocks."""
    load: Load
    lora: str | None = None
    max_tokens: int | None = None
    """The client's limit on the answer."""
    streamed: bool = True
    session: str | None = None
    """The conversation, or the run of an agent, that it belongs to, where its header names it."""
    promise: ServicePromise | None = None
    """Its service level."""
    queued_ms: float = 0.0
    """Before it was given to the policy."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first token of a response passed the edge."""

    request: int
    worker: int
    at: float
    handed_ms: float | None = None
    """Since another engine had computed its prompt."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A response ended, with the usage the engine reported."""

    request: int
    worker: int
    at: float
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class KvChanged:
    """An engine's KV events of one pass."""

    worker: int
    at: float
    stored: list[int]
    removed: list[int]
    host_stored: list[int] = field(default_factory=list[int])
    """Blocks that came into host memory."""
    host_removed: list[int] = field(default_factory=list[int])


class BackgroundLoad(NamedTuple):
    """A batch of equal requests; no prompt shares a block with another one."""

    prompt_tokens: int = 512
    output_tokens: int = 128


class EngineReport(NamedTuple):
    """A load report of one engine: a row of `Load`."""

    running: int
    waiting: int
    kv_usage: float
    running_loras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    """An engine reported; of fleets whose reports have moments of their own."""

    worker: int
    at: float
    report: EngineReport


Observation: TypeAlias = Started | Completed | KvChanged | Reported


class RoutingPolicy(Protocol):
    """Chooses a worker for each arrival. Times are in ms and never go back."""

    def observe(self, observation: Observation, now: float) -> None:
        """Something becomes known now; `observation.at` is when it happened."""
        ...

    def choose(self, arrival: Arrival) -> int | None:
        """The worker (0-based) for this request; None means that it waits, and only a `LatePolicy` returns it."""
        ...


@runtime_checkable
class ElasticPolicy(RoutingPolicy, Protocol):
    """A policy for fleets whose engines come and go."""

    def change_fleet(self, worker: int, present: bool, now: float) -> None:
        """The engine is here from now on, with an empty cache; or it is gone, and its open requests are chosen for
        again."""
        ...


@runtime_checkable
class LegPolicy(RoutingPolicy, Protocol):
    """A policy that may have another worker compute the prompt."""

    def prefiller(self, request: int) -> int | None:
        """The worker that computes the prompt of a request that was just chosen for; None where the chosen one does."""
        ...


@runtime_checkable
class LatePolicy(RoutingPolicy, Protocol):
    """A policy that may let requests wait before it chooses."""

    def bind(self, now: float, load: Load) -> list[tuple[int, int]]:
        """Requests that go to a worker now, and the workers. Asked whenever something became known."""
        ...

    def look_at(self) -> float:
        """When to ask for `bind` even if nothing becomes known."""
        ...
