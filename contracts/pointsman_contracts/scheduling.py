"""Messages of schedulers: reservations for their replicas, and the reasons of each decision for every reader."""

from typing import ClassVar

from msgspec import field

from pointsman_contracts.events import RequestEvent
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.message import NO_BYTES, Address, Blob, Message, Part, always
from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.session import RequestSession, SessionTurn


class CandidateColumns(Part, frozen=True, kw_only=True):
    """All candidates of one profile run as columns: entry `i` of each belongs to `workers[i]`."""

    workers: tuple[str, ...] = always(())
    ages_ms: tuple[float, ...] = always(())
    """Age of each worker's load report when the decision was made; -1 when there was none."""
    running: tuple[int, ...] = always(())
    waiting: tuple[int, ...] = always(())
    kv_usage: tuple[float, ...] = always(())
    matched_tokens: tuple[int, ...] = always(())
    """Prompt tokens believed to be in the worker's KV cache."""
    fetched_tokens: tuple[int, ...] = always(())
    """Further prompt tokens that the worker would fetch from tiers below its device; empty where none would."""
    scores: dict[str, tuple[float | None, ...]] = field(default_factory=dict[str, tuple[float | None, ...]])
    """Scorer instance → unweighted score in [0,1]; None for a candidate that a filter removed."""
    totals: tuple[float | None, ...] = always(())
    """Weighted sums; None for a candidate that a filter removed."""
    filtered: dict[str, str] = field(default_factory=dict[str, str])
    """Worker → `<filter>: <reason>`."""
    opaque: tuple[str, ...] = always(())
    """Workers that report no load: their figures are the schedulers' own counts of open requests."""
    omitted: int = always(0)
    """Candidates left out because the event would have exceeded its size limit; the best are kept."""


class ProfileRun(Part, frozen=True, kw_only=True):
    """One run of a scheduling profile."""

    profile: str
    """Scheduling profile, e.g. `default`, `prefill`, `shadow`."""
    chosen: tuple[str, ...] = always(())
    """Workers in order of preference; empty when the run failed."""
    error: str | None = None
    weights: dict[str, float] = field(default_factory=dict[str, float])
    candidates: CandidateColumns = always(CandidateColumns())


class LegsForecast(Part, frozen=True, kw_only=True):
    """The predicted cost of a request on one engine and on two: milliseconds times requests that wait."""

    worker: str
    """The worker that would compute the prompt."""
    alone: float
    """Cost where the endpoint that answers computes the prompt."""
    apart: float
    """Cost where `worker` does."""
    alone_ttft_ms: float
    """Predicted time to the first token on one engine."""
    apart_ttft_ms: float
    prefill_ms: float
    """Until `worker` has computed the prompt: part of `apart_ttft_ms`."""
    handover_ms: float
    """Until its KV cache is at the endpoint that answers: part of `apart_ttft_ms`."""

    @property
    def pays(self) -> bool:
        """Whether two engines cost less than one."""
        return self.apart < self.alone


class PreludeForecast(Part, frozen=True, kw_only=True):
    """The chosen worker's work before the prompt, as predicted."""

    fetched: dict[str, int] = field(default_factory=dict[str, int])
    """Prompt tokens that it fetches, by tier: `host`, `disk`, `store` or `store:<name>`."""
    fetch_ms: float = always(0.0)
    load_ms: float = always(0.0)
    """To load the request's adapter; 0 where it is taken to be loaded."""


class DryRunForecast(Part, frozen=True, kw_only=True):
    """The answer to a dry run, beside the decision: the times and prices that a real request would probably have."""

    queue_ms: float | None = None
    """In flow control; 0: it would go on at once. None: it would wait, for an unknown time."""
    lacks_room: bool = False
    """Whether it would then wait until the engine's KV cache has room for it."""
    ttft_ms: float | None = None
    """From the dry run to the first token, without `queue_ms`; None while the pool's times aren't known well enough."""
    fallbacks: tuple[str, ...] = ()
    """Models that are tried next where this one's engines fail, in order."""
    prompt_nanos: int | None = None
    """Price of the prompt where none of it is cached, in nano-dollars; None for a model without a price."""
    answer_nanos: int | None = None
    """Price of 1,000 tokens of the answer."""


class RequestScheduled(RequestEvent, frozen=True, kw_only=True):
    """A decision with everything that led to it. Published by the scheduler, or by the stage before it when a provider
    serves the model: without runs, in the pool `-`. Read by recorders and auditors."""

    address: ClassVar[Address] = Address("evt", "request", "scheduled", route=("pool",))

    attempt: int = always(1)
    edge: str
    pool: str
    model: str
    """The model that the client asked for."""
    target: Target
    profile: str
    """The request's profile, as the profile-picker chose it."""
    models: tuple[ModelPoint, ...] = always(())
    """The models that model and engine were chosen among together, the chosen one first; empty for other requests."""
    primary: str
    """The scheduling profile whose choice is used."""
    runs: tuple[ProfileRun, ...]
    endpoints: tuple[str, ...]
    """Workers in the order in which the edge tries them."""
    reason: str
    """Why the first endpoint won, in one line."""
    legs: dict[str, str] = field(default_factory=dict[str, str])
    """Other workers that do a part of the work, by the name of that part, e.g. `prefill`."""
    forecast: LegsForecast | None = None
    """The prediction by which another worker computes the prompt, or doesn't; None where no prediction decided."""
    prelude: PreludeForecast | None = None
    """None where the worker can begin with the prompt at once."""
    stream: bool = always(True)
    """Whether the client asked for a stream: the first byte of any other response is reported only at its end."""
    prompt_tokens: int = always(0)
    cached_tokens: int = always(0)
    """Prompt tokens believed cached on the chosen endpoint."""
    prefix: str = always("")
    """The source of `cached_tokens`. `precise`: the engine's KV events. `approximate`: earlier routing decisions. Empty
    for a prompt without blocks."""
    queued_ms: float = always(0.0)
    """Time in flow control."""
    no_endpoint_ms: float = always(0.0)
    """The part of it in which no engine of the pool served."""
    no_endpoint: str = always("")
    """`PoolWanted.there` while it waited for an engine that serves; empty for a request that didn't."""
    unbound_ms: float = always(0.0)
    """Time that it waited after that for the engine that suits it best."""
    bound_because: str = always("")
    """Why that wait ended; empty for a request that didn't wait so."""
    decided_us: float = always(0.0)
    """Microseconds that the decision took."""
    revision: int
    policy_hash: str = always("")
    """Hash of the scheduling policy that decided; equal hashes decide alike."""
    seed: int = always(0)
    """Seed of the tie-breaker for this decision."""
    level: str = always("full")
    reasons: tuple[str, ...] = always(())
    trail: tuple[StageReport, ...] = always(())
    session: RequestSession | None = None
    """None for a request without one."""
    turn: SessionTurn | None = None
    """None for a request without a session, and where a provider serves the model."""
    dry_run: DryRunForecast | None = None
    """Set in the answer to a dry run alone. Such an event isn't published."""


class ReservationChange(Part, frozen=True, kw_only=True):
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
    decision: int = 1
    """The number of the decision that made the reservation (`PreprocessRequest.decision`). Reports about an earlier
    decision don't end it."""
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
    blocks: Blob = NO_BYTES
    """Prefix blocks of the prompt, salted by model, adapter and tenant; as `RequestFacts.blocks`."""
    blocks_precise: bool = False
    """Whether engines' KV events use the same names for these blocks (`RequestFacts.blocks_precise`)."""
    streamed: bool = True
    """Whether the client asked for a stream. Any other response is reported only at its end."""
    fetched: dict[str, int] | None = None
    """Prompt tokens that the worker is expected to fetch from tiers below its device, by tier; None for none."""
    media: bool = False
    """Whether the prompt has images, sound, video or files: nothing tells how long these take."""
    flow: str | None = None
    """The flow that the request shares capacity in, as `RequestFacts.fairness_id`; None for the default flow."""
    background: bool = False
    """Whether the request gives way to others: its priority is `BATCH_PRIORITY` or less."""
    hinted_tokens: int | None = None
    """Tokens of the answer that the client expects, see `RequestFacts.hinted_output_tokens`; None without a hint."""
    itl_ms: float | None = None
    """The time between two tokens that the operator promised, as `RequestFacts.slo_itl_ms`; None without one."""


class UnboundRequest(Part, frozen=True, kw_only=True):
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
    blocks: Blob = NO_BYTES
    """Prefix blocks of the prompt, as `RequestFacts.blocks`: only in the first message that has this request."""


class Reservations(Message, frozen=True, kw_only=True):
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


class SchedulerStateQuery(Message, frozen=True, kw_only=True):
    """Asks a scheduler for a part of what it knows. Sent by a scheduler that joins, or that missed a message of this
    one; answered with `SchedulerState`. Parts may be asked for while the state goes on changing: what changes is
    told by the usual messages, and all of them may be applied in any order."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "state", route=("instance",))

    pool: str
    worker: str | None = None
    """None asks for reservations; otherwise for the prefix entries of this worker."""
    own: bool = always(False)
    """Only reservations that the one asked has made itself."""
    after: str = always("")
    """Reservations of request ids greater than this, in their order."""
    offset: int = always(0)
    """Prefix entries to leave out, from the most recently used on."""


class OpenReservation(Part, frozen=True, kw_only=True):
    """A reservation on the books."""

    change: ReservationChange
    """As it was made."""
    scheduler: str
    """Who made it."""
    confirmed: bool = always(False)
    """Whether the first byte of the answer came."""


class SchedulerState(Message, frozen=True, kw_only=True):
    """The answer to `SchedulerStateQuery`: a part that fits into one message."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "state-answer", route=("inbox",))

    reservations: tuple[OpenReservation, ...] = always(())
    boot_id: str = always("")
    """The worker's life that the prefix entries belong to."""
    blocks: Blob = always(NO_BYTES)
    """Hashes of prefix blocks, little-endian, 8 bytes each, most recently used first."""
    ages: Blob = always(NO_BYTES)
    """Seconds since the last use of each: IEEE 754 single precision, little-endian."""
    stored: Blob = always(NO_BYTES)
    """One byte for each: 1 when the engine reported it, 0 when it was predicted."""
    more: bool = always(False)
    """Whether there are further parts."""
