"""Registrations and load of engines, on the bus and in the bucket `pm-workers`."""

from typing import Annotated, ClassVar

from msgspec import Meta, field

from pointsman_contracts.events import WorkerEvent
from pointsman_contracts.message import Address, Message, Part, always


def rank_name(engine: str, number: int) -> str:
    """The worker that is this data-parallel rank of an engine."""
    return f"{engine}-rank-{number}"


class WorkerFinding(Part, frozen=True, kw_only=True):
    """A fault of one worker that an operator must mend, and that its load and state don't show."""

    kind: str
    """`twin_name` (two agents have its name), `shared_url` (its URL leads to several processes), `kv_block_size` (its
    KV events can't be used), `load_values` (it reports an impossible figure), `models_unknown` (its list of models
    is unreadable, so it serves those that its pool names), `health_unknown` (its health page leaves open whether it
    is ready), or `wake_failed` (it sleeps, requests wait, and its agent can't wake it)."""
    what: str
    """The fault in words, with names and numbers."""


class DrainNotice(Part, frozen=True, kw_only=True):
    """An engine takes nothing new, and what it has moves to other engines when the time is over."""

    left_ms: int | None = None
    """Until then, when this was sent; a duration, because clocks of hosts differ. 0: it is over. None: what it has may
    end there, however long that takes."""
    why: str = always("")
    """Who or what ordered it, in words."""


class WorkerRegistration(Message, frozen=True, kw_only=True):
    """One engine, as its agent (or the metrics-collector for engines without one) registered it.

    Value of key `<pool>.<worker>` (subject tokens) in bucket `pm-workers`; renewed by heartbeat, expires
    with the bucket's TTL. Read by schedulers and the metrics-collector when they start; an announcement on the bus has
    precedence.
    """

    address: ClassVar[Address] = Address("kv", "worker", "registration", route=("pool", "worker"), bucket="pm-workers")

    worker: str
    """Unique within the pool."""
    pool: str
    url: str
    """Base URL of the engine's HTTP API."""
    engine: str = always("vllm")
    """`vllm`, `sglang`, `trtllm`, `llamacpp`, `triton`, or `opaque`: it reports no load, and schedulers use their own
    counts."""
    engine_version: str = always("")
    models: tuple[str, ...] = always(())
    """Base models that the engine serves."""
    loras: tuple[str, ...] = always(())
    """Adapters that it can serve."""
    role: str = always("both")
    """`both`, `prefill`, `decode` or `encode`."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    block_tokens: int | None = None
    """Tokens in one KV block; None when the engine doesn't report it."""
    kv_block_tokens: int | None = None
    """Tokens in the blocks by which its agent reports KV events; None when it reports none."""
    kv_blocks: int | None = None
    """Size of the KV cache in blocks."""
    max_context: int | None = None
    """Longest sequence in tokens."""
    data_parallel_size: int = always(1)
    """Data-parallel ranks of an engine that is one worker: it, or a handler, chooses among them. 1 for a worker that is
    one rank."""
    server: str | None = None
    """Name that the data-parallel ranks of one engine have in common, where each rank is a worker of its own. They
    share `boot_id` and, where `rank` is set, `url`. None for an engine that is one worker."""
    rank: int | None = None
    """Number by which a request at `url` asks for this rank, from 0; None where `url` leads to this worker alone."""
    rank_field: str | None = None
    """Member of the body that asks for the rank; None: the header `x-data-parallel-rank`."""
    ranks: int | None = None
    """Ranks of the engine that this worker is one of."""
    boot_id: str
    """Changes whenever the engine (re)starts: reservations and prefix entries of another life don't count."""
    agent: str
    """Instance that speaks for the engine."""
    version: str
    """Version of the software that registered it."""
    registered_ms: int


class WorkerAnnouncement(Message, frozen=True, kw_only=True):
    """The registration of an engine on the bus: on change, every 2 s, and when the engine leaves. Published by its
    agent, or by the metrics-collector for engines without one.

    Read by schedulers and the metrics-collector. A worker is gone when
    neither an announcement nor a load report has come from it for 6 s.
    """

    address: ClassVar[Address] = Address("sig", "worker", "announcement", route=("pool", "worker"))

    registration: WorkerRegistration
    leaving: bool = always(False)
    """The engine was drained, or its pool names it no longer: it is gone from now on."""
    findings: tuple[WorkerFinding, ...] = always(())
    """Faults that its agent knows of."""


class WorkerClaim(Message, frozen=True, kw_only=True):
    """An agent's claim to the name of its worker: every 2 s, and at once in answer to another agent's. Published and
    read by agents of this name alone. Of several agents before different engines the one that has spoken longest
    speaks on; the others are silent until it has left."""

    address: ClassVar[Address] = Address("sig", "worker", "claim", route=("pool", "worker"))

    worker: str
    pool: str
    agent: str
    url: str
    """The engine's URL, as edges reach it."""
    boot_id: str = always("")
    """Life of its engine; empty while unknown."""
    spoken_ms: int = always(0)
    """How long it has spoken for the worker without a pause."""
    leaving: bool = always(False)
    """It drains, or has left: another agent may speak."""


class WorkerLoad(Message, frozen=True, kw_only=True):
    """Load of an engine. Published by its agent on change (at most 20 times a second), and at least every 400 ms.

    Read by schedulers and the metrics-collector; latest wins. A worker not heard of for 1.2 s is silent.
    """

    address: ClassVar[Address] = Address("sig", "worker", "load", route=("pool", "worker"))

    worker: str
    pool: str
    boot_id: str
    """Empty for an engine that its pool names and that has never answered."""
    sequence: int
    """Counts from 1 in each life of the agent."""
    at_ms: int
    """When the engine was read, by the agent's clock."""
    age_ms: Annotated[int, Meta(ge=0)] = always(0)
    """Age of the reading when the report was sent: an idle engine is read less often than its load is published."""
    state: str = always("serving")
    """`serving`; `not_ready` (its health page says so, or none of its pages answers: nothing new while another worker
    serves; what it has goes on); `draining` (finishes what it has, takes nothing new); `asleep` (answers nothing until
    it is woken); or `unreachable` (connections are refused or reset)."""
    reason: str = always("")
    """Why it doesn't serve, in words; empty when it serves or drains."""
    wake_failed: str = always("")
    """Why its agent couldn't wake it, in words; empty when it serves, when that wasn't tried, and while it is tried."""
    load_unknown: str = always("")
    """Why the figures below are unknown, in words; empty when they are known. They are 0 then and `age_ms` is an hour
    or more, so that a reader that doesn't know this field counts the requests that it has sent."""
    worked_tokens: int | None = None
    """The engine's own counters of steps or tokens, added up: they move with each step, stand while it does nothing,
    and go back with a restart. None when it has none that move before a request ends."""
    running: int = always(0)
    """Sequences in the running batch."""
    waiting: int = always(0)
    """Requests queued in the engine."""
    kv_usage: float = always(0.0)
    """Used part of the KV cache in [0,1]."""
    running_loras: tuple[str, ...] = always(())
    waiting_loras: tuple[str, ...] = always(())
    max_loras: int = always(0)
    draining: DrainNotice | None = None
    """Set while it drains."""


class WorkerJoined(WorkerEvent, frozen=True, kw_only=True):
    """A worker registered, registered in a new life, or was heard again after a silence. Published by the
    metrics-collector that answers for this worker; for any reader."""

    address: ClassVar[Address] = Address("evt", "worker", "joined", route=("pool",))

    url: str
    engine: str
    models: tuple[str, ...] = always(())
    why: str = always("registered")
    """`registered`, `restarted` (a new life) or `heard` (after a silence)."""


class WorkerSilent(WorkerEvent, frozen=True, kw_only=True):
    """A registered worker reported nothing for 1.2 s: its agent is gone or cut off. Published by the metrics-collector
    that answers for this worker; for any reader."""

    address: ClassVar[Address] = Address("evt", "worker", "silent", route=("pool",))

    silent_ms: int
    """Since the last load report, or since the registration when there was none."""


class WorkerLeft(WorkerEvent, frozen=True, kw_only=True):
    """A worker's registration is gone: removed after a drain, or expired. Published by the metrics-collector that
    answers for this worker; for any reader."""

    address: ClassVar[Address] = Address("evt", "worker", "left", route=("pool",))

    state: str
    """The state that it was last seen in, as `WorkerView.state`."""


class WorkerDraining(WorkerEvent, frozen=True, kw_only=True):
    """A worker began to drain, its deadline changed, or it takes requests again. Published by the metrics-collector
    that answers for this worker; for any reader."""

    address: ClassVar[Address] = Address("evt", "worker", "draining", route=("pool",))

    draining: DrainNotice | None = None
    """None: it takes requests again."""
