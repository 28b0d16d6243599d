"""Messages of schedulers: reservations for their replicas, and the reasons of each decision for every reader."""

from typing import ClassVar

from pydantic import Field

from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.message import Address, Message, Part


class CandidateColumns(Part):
    """All candidates of one profile run as columns: entry `i` of each belongs to `workers[i]`."""

    workers: tuple[str, ...] = ()
    ages_ms: tuple[float, ...] = ()
    """Age of each worker's load report when the decision was made; -1 when there was none."""
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    kv_usage: tuple[float, ...] = ()
    matched_tokens: tuple[int, ...] = ()
    """Prompt tokens believed to be in the worker's KV cache."""
    scores: dict[str, tuple[float | None, ...]] = Field(default_factory=dict[str, tuple[float | None, ...]])
    """Scorer instance → unweighted score in [0,1]; None for a candidate that a filter removed."""
    totals: tuple[float | None, ...] = ()
    """Weighted sums; None for a candidate that a filter removed."""
    filtered: dict[str, str] = Field(default_factory=dict[str, str])
    """Worker → `<filter>: <reason>`."""
    opaque: tuple[str, ...] = ()
    """Workers that report no load: their figures are the schedulers' own counts of open requests."""
    omitted: int = 0
    """Candidates left out because the event would have exceeded its size limit; the best are kept."""


class ProfileRun(Part):
    """One run of a scheduling profile."""

    profile: str
    """Scheduling profile, e.g. `default`, `prefill`, `shadow`."""
    chosen: tuple[str, ...] = ()
    """Workers in order of preference; empty when the run failed."""
    error: str | None = None
    weights: dict[str, float] = Field(default_factory=dict[str, float])
    candidates: CandidateColumns = CandidateColumns()


class RequestScheduled(Message):
    """A decision with everything that led to it. Published by the scheduler, or by the stage before it when a provider
    serves the model: without runs, in the pool `-`. Read by recorders and auditors."""

    address: ClassVar[Address] = Address("evt", "request", "scheduled", route=("pool",))

    request_id: str
    attempt: int = 1
    source: str
    """Instance that decided."""
    sequence: int
    """Counts this source's events of this type and pool from 1, without gaps."""
    at_ms: int
    edge: str
    pool: str
    model: str
    """The model that the client asked for."""
    target: Target
    profile: str
    """The request's profile, as the profile-picker chose it."""
    primary: str
    """The scheduling profile whose choice is used."""
    runs: tuple[ProfileRun, ...]
    endpoints: tuple[str, ...]
    """Workers in the order in which the edge tries them."""
    reason: str
    """Why the first endpoint won, in one line."""
    legs: dict[str, str] = Field(default_factory=dict[str, str])
    """Other workers that do a part of the work, by the name of that part, e.g. `prefill`."""
    stream: bool = True
    """Whether the client asked for a stream: the first byte of any other response is reported only at its end."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens believed cached on the chosen endpoint."""
    prefix: str = ""
    """The source of `cached_tokens`. `precise`: the engine's KV events. `approximate`: earlier routing decisions. Empty
    for a prompt without blocks."""
    queued_ms: float = 0.0
    """Time in flow control."""
    unbound_ms: float = 0.0
    """Time that it waited after that for the engine that suits it best."""
    bound_because: str = ""
    """Why that wait ended; empty for a request that didn't wait so."""
    decided_us: float = 0.0
    """Microseconds that the decision took."""
    revision: int
    policy_hash: str = ""
    """Hash of the scheduling policy that decided; equal hashes decide alike."""
    seed: int = 0
    """Seed of the tie-breaker for this decision."""
    level: str = "full"
    reasons: tuple[str, ...] = ()
    trail: tuple[StageReport, ...] = ()


class ReservationChange(Part):
    """One request put on, or taken off, the books of a worker. Idempotent by edge, request id and leg."""

    op: str
    """`reserve`, `confirm` (the first response byte came), `release` (it ended), `retract` (it never ran:
    prefix entries written for it are taken back)."""
    request_id: str
    worker: str
    boot_id: str = ""
    """The worker's life that the reservation belongs to."""
    edge: str = ""
    leg: str = ""
    """Empty for the endpoint that answers; otherwise the part of the work that this worker does, e.g. `prefill`."""
    attempt: int = 1
    """Attempt of the journey that it was made for: a later one takes the place of an earlier one."""
    lora: str | None = None
    session: str | None = None
    rank: int | None = None
    """Data-parallel rank inside the engine; None when the engine chooses."""
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    """Prompt tokens that the worker is expected to compute."""
    output_tokens: int = 0
    """Expected output tokens."""
    block_tokens: int = 64
    blocks: bytes = b""
    """Prefix blocks of the prompt, salted by model, adapter and tenant; as `RequestFacts.blocks`."""
    blocks_precise: bool = False
    """As `RequestFacts.blocks_precise`."""
    streamed: bool = True
    """Whether the client asked for a stream. Any other response is reported only at its end."""
    media: bool = False
    """Whether the prompt has images, sound, video or files: nothing tells how long these take."""


class UnboundRequest(Part):
    """A request that waits at a scheduler for the engine that suits it best."""

    worker: str
    """The worker that it is planned for."""
    uncached_tokens: int = 0
    """Prompt tokens that the worker would compute."""
    prompt_tokens: int = 0
    priority: int = 0
    left_ms: int = 0
    """How long until it goes before all that are shorter; below 0 when it does already."""
    request_id: str = ""
    edge: str = ""
    waited_ms: int = 0
    max_output_tokens: int | None = None
    block_tokens: int = 64
    blocks: bytes = b""
    """Prefix blocks of the prompt, as `RequestFacts.blocks`: only in the first message that has this request."""


class Reservations(Message):
    """The reservations of one scheduler in one tick. Published by schedulers, read by their replicas."""

    address: ClassVar[Address] = Address("sig", "scheduler", "reservation", route=("pool",))

    pool: str
    scheduler: str
    sequence: int
    """Counts this scheduler's messages of this pool from 1; a gap makes the reader ask for a snapshot."""
    at_ms: int
    changes: tuple[ReservationChange, ...]
    unbound: tuple[UnboundRequest, ...] | None = None
    """All requests of the pool that wait at this scheduler for their engines, so that two schedulers don't fill one
    pass; None when nothing about them has changed."""


class SchedulerStateQuery(Message):
    """Asks a scheduler for a part of what it knows. Sent by a scheduler that joins, or that missed a message of this
    one; answered with `SchedulerState`. Parts may be asked for while the state goes on changing: what changes is
    told by the usual messages, and all of them may be applied in any order."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "state", route=("instance",))

    pool: str
    worker: str | None = None
    """None asks for reservations; otherwise for the prefix entries of this worker."""
    own: bool = False
    """Only reservations that the one asked has made itself."""
    after: str = ""
    """Reservations of request ids greater than this, in their order."""
    offset: int = 0
    """Prefix entries to leave out, from the most recently used on."""


class OpenReservation(Part):
    """A reservation on the books."""

    change: ReservationChange
    """As it was made."""
    scheduler: str
    """Who made it."""
    confirmed: bool = False
    """Whether the first byte of the answer came."""


class SchedulerState(Message):
    """The answer to `SchedulerStateQuery`: a part that fits into one message."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "state-answer", route=("inbox",))

    reservations: tuple[OpenReservation, ...] = ()
    boot_id: str = ""
    """The worker's life that the prefix entries belong to."""
    blocks: bytes = b""
    """Hashes of prefix blocks, little-endian, 8 bytes each, most recently used first."""
    ages: bytes = b""
    """Seconds since the last use of each: IEEE 754 single precision, little-endian."""
    stored: bytes = b""
    """One byte for each: 1 when the engine reported it, 0 when it was predicted."""
    more: bool = False
    """Whether there are further parts."""
