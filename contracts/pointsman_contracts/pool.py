"""The state of a pool in one message, for readers that don't need every load report."""

from typing import ClassVar

from msgspec import field

from pointsman_contracts.message import Address, Message, Part, always
from pointsman_contracts.worker import DrainNotice, WorkerFinding


class WorkerView(Part, frozen=True, kw_only=True):
    """One worker as the metrics-collector sees it."""

    worker: str
    url: str
    boot_id: str = always("")
    state: str = always("serving")
    """The state that the engine reported (`WorkerLoad.state`), or `silent` (no load report for 1.2 s)."""
    reason: str = always("")
    """Why it doesn't serve, in words; empty when it serves, drains or is silent."""
    models: tuple[str, ...] = always(())
    loras: tuple[str, ...] = always(())
    running: int = always(0)
    waiting: int = always(0)
    kv_usage: float = always(0.0)
    age_ms: float = always(-1.0)
    """Age of the last load report at `at_ms`; -1 when there was none."""
    opaque: bool = always(False)
    """It reports no load: `running`, `waiting` and `kv_usage` are 0 because they are unknown, and schedulers use their
    own counts."""
    load_unknown: str = always("")
    """Why the figures of an engine that should report them are unknown, in words; `opaque` is True then. Empty when
    they are known."""
    findings: tuple[WorkerFinding, ...] = always(())
    """Faults of the worker that an operator must mend."""
    verdict: str = always("")
    """The schedulers' finding by its answers, as `WorkerVerdict.verdict`: `ejected`, `suspect`, `failing`, `lacking`,
    `unheeded`; empty: it is well."""
    verdict_reason: str = always("")
    """The reason of the verdict."""
    engine: str = always("")
    """The kind of engine (`WorkerRegistration.engine`); empty where it isn't known."""
    draining: DrainNotice | None = None
    """The drain that the engine reported (`WorkerLoad.draining`), at `PoolSnapshot.at_ms`."""
    server: str | None = None
    """Common name of the ranks of one engine. This and the next two fields are those of `WorkerRegistration`."""
    rank: int | None = None
    rank_field: str | None = None


class PoolDiscovery(Part, frozen=True, kw_only=True):
    """How the endpoints of a pool are found, where that is neither agents nor the configuration."""

    kind: str
    """`kubernetes` or `file`."""
    problem: str = always("")
    """Why `endpoints` may be old or incomplete; empty otherwise."""
    endpoints: int = always(0)
    """How many were found."""


class EnginePrice(Part, frozen=True, kw_only=True):
    """What an engine costs while it is listed, and how its time is divided (`pools.<name>.cost`)."""

    hour_nanos: int
    """Nano-dollars for an hour of one engine."""
    output_weight: float = always(2.0)
    """The weight of an output token, where a computed prompt token has 1."""


class PoolSnapshot(Message, frozen=True, kw_only=True):
    """A pool at one moment. Published by the metrics-collector on change and at least once a second.

    Read by the profile-picker and the model-selector (saturation), and by edges (models, and endpoints to
    fall back on when the bus is gone). Latest wins.
    """

    address: ClassVar[Address] = Address("sig", "pool", "snapshot", route=("pool",))

    pool: str
    source: str
    """Metrics-collector instance."""
    sequence: int
    at_ms: int
    workers: tuple[WorkerView, ...] = always(())
    saturation: float = always(0.0)
    """Mean over serving workers of max(waiting/5, kv_usage/0.8), each at most 1; beyond 1, the least of these values.
    So 1.0 or more only when each worker is full; also 1.0 with no worker. Workers with an unknown load don't count, nor
    do those that get trial requests only."""
    models: tuple[str, ...] = always(())
    """Models and adapters that at least one serving worker serves; while none serves, those of workers that aren't
    ready or are silent."""
    unreached: dict[str, str] = field(default_factory=dict[str, str])
    """Engines that the pool names and that have never answered, by worker → why."""
    discovery: PoolDiscovery | None = None
    """None for a pool of agents or of engines that the configuration lists."""
    price: EnginePrice | None = None
    """None for a pool without `cost`."""


class WeightedModel(Part, frozen=True, kw_only=True):
    """One target of a rewrite."""

    model: str
    weight: float


class PoolRewrite(Part, frozen=True, kw_only=True):
    """An InferenceModelRewrite's rule: requests for these models are served by others."""

    source: str
    """Name of the InferenceModelRewrite, for notes and metrics."""
    match: tuple[str, ...] = always(())
    """Exact names; empty for every model of the pool."""
    to: tuple[WeightedModel, ...]


class PoolRules(Message, frozen=True, kw_only=True):
    """Rules for a pool from the cluster's InferenceObjectives and InferenceModelRewrites.

    Value of key `<pool>` (a subject token) in bucket `pm-pools`, published by the metrics-collector that answers for
    the pool when it changes. Read by preprocessors. The configuration has precedence.
    """

    address: ClassVar[Address] = Address("kv", "pool", "rules", route=("pool",), bucket="pm-pools")

    pool: str
    objectives: dict[str, int] = field(default_factory=dict[str, int])
    """InferenceObjective by name → its priority."""
    rewrites: tuple[PoolRewrite, ...] = always(())
    """In the order in which they apply."""
