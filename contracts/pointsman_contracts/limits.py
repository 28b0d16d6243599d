"""How preprocessors keep one count together: each shard of the counters is kept by one of them, and asked of it.

A shard is a part of all tenants. Its keeper is the live preprocessor that ranks highest for it; the others ask it, many
requests in one message. With a single preprocessor none of these messages is sent.
"""

from typing import ClassVar, Literal

from msgspec import field

from pointsman_contracts.message import Address, Message, Part, always

SHARDS = 64
"""Parts that all counters are cut into; more than there will be preprocessors."""
LIMITS_BUCKET = "pm-limits"


class LimitWindow(Part, frozen=True, kw_only=True):
    """One count that a request is held against."""

    unit: Literal["requests", "tokens", "concurrency"]
    amount: float
    """The most that is admitted: in `period_s`, or at the same time for `concurrency`."""
    period_s: float = always(0.0)
    """Seconds; 0 for `concurrency`, which counts open requests."""
    burst: float = always(0.0)
    """For `requests`: how many may come at once."""
    measure: str = always("")
    """The counted thing, if it is neither requests nor tokens: a plural such as `images`. `unit` then only states how:
    `requests` by arrivals, `tokens` by what was used in the period, `concurrency` by what is open."""

    @property
    def counted_unit(self) -> str:
        """The counted unit, as clients call it."""
        return self.measure or ("requests" if self.unit == "concurrency" else self.unit)


class BudgetWindow(Part, frozen=True, kw_only=True):
    """How much money may be spent in a period of whole days (UTC)."""

    amount: int
    """Nano-dollars."""
    days: int | None = None
    """Number of days, today included; None: the calendar month."""
    soft: int | None = None
    """Nano-dollars from which on a warning is given."""
    hard: bool = always(True)
    """Whether requests are refused that exceed the amount."""


class BudgetAsk(Part, frozen=True, kw_only=True):
    """The largest cost of a request, for one budget."""

    windows: tuple[BudgetWindow, ...]
    expected: int
    """Nano-dollars that it will probably cost."""
    at_most: int
    """Nano-dollars that it may cost: reserved until its end is known."""


class LimitedRequest(Part, frozen=True, kw_only=True):
    """A request and one of its limits."""

    edge: str
    request_id: str
    limit: str
    """Name of the limit, as configured."""
    scope: str = always("")
    """The owner of the count: the values of the limit's scopes, in order. Values of headers are hashed."""


class LimitAsk(LimitedRequest, frozen=True, kw_only=True):
    """A request before one limit."""

    attempt: int = always(1)
    """From 2 on the request was sent again: its first attempt stays counted, and it isn't counted twice."""
    shard: int
    windows: tuple[LimitWindow, ...]
    """All of them admit the request, or none counts it."""
    cost: float = always(1.0)
    """Provisional count: 1 for a request, or the expected tokens."""
    risk: float = always(0.0)
    """Tokens that it may use beyond `cost`."""
    reactive: bool = always(False)
    """Nothing is counted before it is known; the request is admitted while something is left."""
    kept: bool = always(False)
    """It stays counted when another limit refuses the request."""
    until_ms: int
    """Unix milliseconds after which the request can't be open any more."""
    open_s: float | None = None
    """How long that is from now. Goes before `until_ms`, which is of its edge's clock."""
    budget: BudgetAsk | None = None
    """Set for a budget, instead of `windows` and `cost`."""
    dry_run: bool = False
    """It is judged and not counted. A keeper of an earlier version counts it until `until_ms`."""
    follows: bool | None = None
    """True: it is of the same request as the question before it in the message, and is counted only if that one is
    admitted; otherwise its verdict is `elsewhere`. A keeper of an earlier version counts it in any case."""


class LimitAsks(Message, frozen=True, kw_only=True):
    """Requests before limits that another preprocessor keeps. Sent by preprocessors; answered with `LimitVerdicts`."""

    address: ClassVar[Address] = Address("ctl", "limits", "ask", route=("keeper",))

    asks: tuple[LimitAsk, ...]


class WindowStanding(Part, frozen=True, kw_only=True):
    """The remaining amount of a window after the request."""

    remaining: float
    reset_s: float
    """Seconds until nothing is counted in it, if nothing is added."""


class BudgetStanding(Part, frozen=True, kw_only=True):
    """State of a budget before the request, in the window that has the least left."""

    window: int
    """Its position."""
    spent: int
    """Nano-dollars of requests that have ended."""
    reserved: int
    """Nano-dollars that open requests may cost."""
    reset_ms: int
    """Unix milliseconds of the midnight (UTC) at which enough for the request leaves the window, or all of it where
    nothing is refused."""
    soft: bool = always(False)
    """Whether the warning's amount is reached."""


class LimitVerdict(Part, frozen=True, kw_only=True):
    """The verdict of a limit about a request."""

    outcome: Literal["admitted", "refused", "elsewhere"]
    """`elsewhere`: another preprocessor keeps the shard, or none does yet."""
    standings: tuple[WindowStanding, ...] = ()
    """One for each window of the question."""
    window: int = 0
    """With `refused`: the position of the window that refuses for longest."""
    retry_s: float | None = None
    """For a rejection: seconds until the same request would be admitted if no other is; None: never, or unknown."""
    keeper: str = ""
    """With `elsewhere`: the instance that keeps it; empty when unknown."""
    budget: BudgetStanding | None = None
    """Set for a budget, instead of `standings`, `window` and `retry_s`."""


class LimitVerdicts(Message, frozen=True, kw_only=True):
    """The answer to `LimitAsks`, in the same order."""

    address: ClassVar[Address] = Address("ctl", "limits", "verdicts", route=("inbox",))

    verdicts: tuple[LimitVerdict, ...]


class LimitRelease(Part, frozen=True, kw_only=True):
    """A request that another limit refused: it counts as if it had never come."""

    edge: str
    request_id: str
    limit: str
    shard: int


class LimitReleases(Message, frozen=True, kw_only=True):
    """Takes back what a keeper counted. Sent by the preprocessor that had asked."""

    address: ClassVar[Address] = Address("ctl", "limits", "release", route=("keeper",))

    releases: tuple[LimitRelease, ...]


class LimitGrant(Part, frozen=True, kw_only=True):
    """A request that a keeper admitted."""

    number: int
    """How many requests were counted in the shard, this one included; goes on from keeper to keeper."""
    at: float
    """When, in unix seconds of the keeper's clock."""
    ask: LimitAsk


class LimitKept(Message, frozen=True, kw_only=True):
    """The shards that a preprocessor keeps, and the requests that it admitted since its last message. Sent by
    preprocessors to all of them, the sender included: receiving its own message proves that the others have received
    it, or will before its next one."""

    address: ClassVar[Address] = Address("sig", "limits", "kept", route=("keeper",))

    keeper: str
    """Its instance."""
    run: str
    """Another one for each start of a process."""
    number: int
    """Counts the messages with `epochs`."""
    at: float
    """When it was sent, in unix seconds of the keeper's clock."""
    epochs: tuple[int, ...] = ()
    """For each shard the epoch in which the sender keeps or claims it, 0 for others; empty where only grants are
    told."""
    grants: tuple[LimitGrant, ...] = ()
    """Requests that the sender admitted."""
    retold: tuple[LimitGrant, ...] = ()
    """Recent grants of other preprocessors, for one that has just started; by the sender's clock."""


class CounterState(Part, frozen=True, kw_only=True):
    """One count."""

    window: str
    """Unit and period, e.g. `tokens/60`, and the measure if there is one: `tokens/60/images`."""
    limit: str
    scope: str = always("")
    due: float | None = None
    """For `requests`: the theoretical arrival time, unix seconds."""
    each_s: float | None = None
    """For `requests`: seconds between two of them, at the rate by which `due` was counted."""
    first_slot: int = always(0)
    """For `tokens`: number of the oldest slot, each a 60th of the period, from the epoch."""
    slots: tuple[float, ...] = always(())
    """For `tokens`: what was used in each."""


class ChargeState(LimitedRequest, frozen=True, kw_only=True):
    """A request that is counted and hasn't ended."""

    windows: tuple[str, ...]
    """The counts that it is in, each by its `CounterState.window`."""
    cost: float
    at: float
    """When it was counted, unix seconds."""
    until: float
    """When it can't be open any more, unix seconds."""
    kept: bool = always(False)
    risk: float = always(0.0)
    """The risk of its question (`LimitAsk.risk`)."""
    until_ms: int | None = None
    """The time in the question (`LimitAsk.until_ms`); None from a keeper of an earlier version."""


class AccountState(Part, frozen=True, kw_only=True):
    """Spending from one budget by one scope."""

    limit: str
    scope: str = always("")
    days: dict[int, int]
    """Days since 1970-01-01 (UTC) → nano-dollars of requests that ended on that day."""
    told: tuple[str, ...] = always(())
    """Warnings that were published: level, window and the window's first day."""


class ReservationState(LimitedRequest, frozen=True, kw_only=True):
    """Money that a request holds that hasn't ended."""

    amount: int
    """Nano-dollars."""
    until: float
    """When it can't be open any more, unix seconds."""
    until_ms: int | None = None
    """The time in the question (`LimitAsk.until_ms`); None from a keeper of an earlier version."""


class LimitShard(Message, frozen=True, kw_only=True):
    """Everything that is counted in a shard. Value of its number in the bucket `pm-limits`, written by its keeper
    twice a second while it changes; and the answer to `LimitHandOver`."""

    address: ClassVar[Address] = Address("kv", "limits", "shard", route=("shard",), bucket=LIMITS_BUCKET)

    shard: int
    keeper: str
    """Instance that keeps it; empty when it was given up."""
    epoch: int = always(0)
    """How often its keeper has changed."""
    granted: int = always(0)
    """The number of the last `LimitGrant` in it."""
    at_ms: int
    counters: tuple[CounterState, ...] = always(())
    charges: tuple[ChargeState, ...] = always(())
    accounts: tuple[AccountState, ...] = always(())
    reservations: tuple[ReservationState, ...] = always(())
    spent_to: int | None = None
    """The last message of the stream `PM_EVENTS` whose cost is in `accounts`; None where there is no budget."""
    spent_in: str = always("")
    """When that stream was made: a stream that was made anew numbers its messages from 1."""


class LimitHandOver(Message, frozen=True, kw_only=True):
    """Asks a keeper for a shard that now is another's. Sent by preprocessors; answered with `LimitShard`, after which
    the asker keeps it."""

    address: ClassVar[Address] = Address("ctl", "limits", "hand-over", route=("keeper",))

    shard: int
    to: str
    """Instance that will keep it."""


class BudgetReached(Message, frozen=True, kw_only=True):
    """A budget's warning amount, or its whole amount, is reached: once for each window and period. Published by the
    preprocessor that keeps the count; for any reader."""

    address: ClassVar[Address] = Address("evt", "budget", "reached", route=("budget",))

    source: str
    """Preprocessor instance."""
    sequence: int
    """Counts this source's events of this type and budget from 1, without gaps."""
    at_ms: int
    budget: str
    """Name of the budget, as configured."""
    level: Literal["soft", "hard"]
    """`soft`: the warning's amount; `hard`: the whole amount."""
    scope: dict[str, str] = field(default_factory=dict[str, str])
    """The owner of the budget: values of `tenant`, `key`, `subject`, `plan`, `model`, as far as it counts by them."""
    period: str
    """`d`, `7d`, `month`, ..."""
    amount_nanos: int
    """The amount that is reached, in nano-dollars."""
    spent_nanos: int
    """Cost of the requests that have ended, in nano-dollars."""
    reset_ms: int
    """Unix milliseconds at which the first of the spent money leaves the window."""
