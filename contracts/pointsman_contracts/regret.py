"""Regret: what a decision cost beyond the best candidate, once its request has ended. Definition: docs/regret.md."""

from typing import ClassVar

from msgspec import field

from pointsman_contracts.events import Numbered
from pointsman_contracts.message import Address, Message, Part, always
from pointsman_contracts.usage import RecorderAnswer


class JudgedCandidate(Part, frozen=True, kw_only=True):
    """One engine at the moment of a decision, as it turned out."""

    worker: str
    cost_us: int
    """Cost of choosing it, in microseconds."""
    uncached_tokens: int
    """Prompt tokens that it would have had to compute."""
    came: int
    """Requests that were sent to it between the decision and the first token."""
    figures: tuple[float, ...]
    """Its state, in the order that docs/regret.md gives."""


class JudgedChoice(Part, frozen=True, kw_only=True):
    """The choice of one scheduling profile for a request."""

    profile: str
    worker: str
    cost_us: int
    regret_us: int
    """`cost_us` less the least cost of any candidate that passed the profile's filters."""
    reason: str = always("")
    """Why another worker was chosen than the best: `scorer:<name>`, `picker`, `tie`, `late-binding`. Empty when none
    would have cost less."""
    filter: str = always("")
    """The filter that removed the cheapest worker of all, where that would have cost less than any that passed."""
    filtered_us: int = always(0)
    """How much less."""


class JudgedRequest(Part, frozen=True, kw_only=True):
    """One request that has ended, with the costs of the engines that it could have gone to."""

    request_id: str
    edge: str
    at_ms: int
    """When it was decided, unix milliseconds."""
    prompt_tokens: int
    output_tokens: int
    """The real length of its answer."""
    costs_us: dict[str, int] = field(default_factory=dict[str, int])
    """Worker → cost, cheapest first: the 16 cheapest, and those chosen."""
    candidates: tuple[JudgedCandidate, ...] = always(())
    """The chosen worker, and after it the cheapest other one that passed the filters."""
    choices: tuple[JudgedChoice, ...] = always(())
    """The profile whose choice was used, then the others: shadows."""


class RequestsJudged(Numbered, frozen=True, kw_only=True):
    """The regret of some requests of a pool. Published by the recorder about once a second; for any reader. Costs of
    one message are by the same rates."""

    address: ClassVar[Address] = Address("evt", "request", "judged", route=("pool",))

    at_ms: int
    """When the last of the requests ended, unix milliseconds."""
    judge: str
    """The recorder's name: each recorder judges every request."""
    pool: str
    rates: tuple[float, ...]
    """Coefficients of the pass model, in the order of docs/regret.md."""
    others: float
    """Expected answer of other requests, in tokens."""
    batch_tokens: float
    """Prompt tokens that one pass computes."""
    first_token_weight: float
    requests: tuple[JudgedRequest, ...] = always(())
    unjudged: dict[str, int] = field(default_factory=dict[str, int])
    """Why requests weren't judged → how many since the last event: `model` (the pass model isn't trusted yet),
    `unanswered` (no complete answer), `moved` (an engine failed), `split` (several engines did a part each), `unseen`
    (its decision wasn't seen)."""


class RegretQuery(Message, frozen=True, kw_only=True):
    """Asks for sums of regret. Sent by tools; answered by a recorder that judges with `RegretSums`."""

    address: ClassVar[Address] = Address("ctl", "regret", "sums")

    by: tuple[str, ...] = always(("pool", "profile", "reason"))
    """Dimensions of the rows: `pool`, `hour`, `profile`, `reason`."""
    since: str | None = None
    """First hour (UTC), as `2026-03-01T00`; a day means its first hour."""
    until: str | None = None
    """Last hour (UTC), included; a day means its last hour."""
    pool: str | None = None
    profile: str | None = None


class RegretSum(Part, frozen=True, kw_only=True):
    """The choices of one row, summed. A dimension that wasn't asked for is None."""

    pool: str | None = None
    hour: str | None = None
    """Hour of the decisions (UTC), as `2026-03-01T09`."""
    profile: str | None = None
    """Scheduling profile that chose: the one that was used, or a shadow."""
    reason: str | None = None
    """The reason (`JudgedChoice.reason`); `filter:<name>` for the cost of a filter."""
    requests: int = always(0)
    """Choices that were judged. A row of a filter has those of other rows once more."""
    judged: int = always(0)
    """`requests` without those of filters."""
    regret_us: int = always(0)
    cost_us: int = always(0)
    """Regret of the workers that were chosen."""


class RegretSums(RecorderAnswer, frozen=True, kw_only=True):
    """The answer to `RegretQuery`."""

    address: ClassVar[Address] = Address("ctl", "regret", "sums-answer", route=("inbox",))

    judging: bool
    """Whether it judges requests now."""
    rows: tuple[RegretSum, ...] = always(())
    """By pool, hour, profile, reason."""
