"""Usage of requests, for billing."""

from typing import ClassVar

from pointsman_contracts.identity import Identity
from pointsman_contracts.message import Address, Message, Part, always
from pointsman_contracts.response import Usage

NO_TENANT = "-"
"""Stands for the tenant in the subject of a record that has none."""


class UsageRecord(Message, frozen=True, kw_only=True):
    """One entry of the usage ledger: what one request used, of one model. Kept in the stream `PM_USAGE`, each once.

    Published by the recorder, from `ResponseCompleted`; for any reader."""

    address: ClassVar[Address] = Address("rec", "usage", "record", route=("tenant",))

    key: str
    """Names the request among all: a client may use a request id again when the one before has ended."""
    request_id: str
    at_ms: int
    """When the request ended, unix milliseconds."""
    identity: Identity = always(Identity())
    model: str = always("")
    """Name that the configuration knows the model by that answered; empty when the request never had one."""
    pool: str | None = None
    provider: str | None = None
    api: str = always("")
    stream: bool = always(False)
    status: int
    outcome: str
    """How the request ended (`ResponseCompleted.outcome`), or `escalated`: a cascade sent another model's answer."""
    usage: Usage = always(Usage())
    cost: float | None = None
    """`cost_nanos` in dollars, rounded to a binary float: for readers of earlier versions."""
    cost_nanos: int | None = None
    """In nano-dollars; None for a model without a price, and in records of earlier versions."""


class UsageQuery(Message, frozen=True, kw_only=True):
    """Asks for sums of the usage ledger. Sent by tools; answered by a recorder with `UsageSums`."""

    address: ClassVar[Address] = Address("ctl", "usage", "sums")

    by: tuple[str, ...] = always(("tenant", "model", "day"))
    """Dimensions of the rows: `tenant`, `subject`, `key`, `model`, `day`."""
    since: str | None = None
    """First day (UTC), as `2026-03-01`."""
    until: str | None = None
    """Last day (UTC), included."""
    tenant: str | None = None
    model: str | None = None
    key: str | None = None


class UsageSum(Part, frozen=True, kw_only=True):
    """The requests of one row, summed. A dimension that wasn't asked for is None."""

    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    model: str | None = None
    day: str | None = None
    requests: int = always(0)
    failed: int = always(0)
    """Those of them whose client got an error, or left."""
    prompt_tokens: int = always(0)
    cached_tokens: int = always(0)
    completion_tokens: int = always(0)
    reasoning_tokens: int = always(0)
    estimated: int = always(0)
    """Requests whose tokens neither engine nor provider reported in full."""
    cost: float = always(0.0)
    """`cost_nanos` in dollars, rounded to a binary float: for readers of earlier versions."""
    cost_nanos: int = always(0)
    """In nano-dollars, of the requests that have a price."""
    unpriced: int = always(0)
    """Requests that used tokens of a model without a price."""


class LostSum(Part, frozen=True, kw_only=True):
    """Events of one type that the stream doesn't have: their numbers are missing."""

    type: str
    """Type id, e.g. `response.completed.v1`. Each of those is a request without a record."""
    count: int
    from_ms: int
    """Unix milliseconds between which they were published."""
    to_ms: int


class RecorderAnswer(Message, frozen=True, kw_only=True):
    """A part of the sums that a recorder keeps."""

    recorder: str
    """Instance that answers."""
    more: bool = always(False)
    """Rows are missing, because there are more than a message takes."""
    behind: int = always(0)
    """Events that the recorder hasn't read yet."""


class UsageSums(RecorderAnswer, frozen=True, kw_only=True):
    """The answer to `UsageQuery`."""

    address: ClassVar[Address] = Address("ctl", "usage", "sums-answer", route=("inbox",))

    rows: tuple[UsageSum, ...] = always(())
    """By day, tenant, subject, key, model."""
    unpriced_models: tuple[str, ...] = always(())
    """Names of models without a price that these requests used, at most 20."""
    lost: tuple[LostSum, ...] = always(())
    """Events that were lost on the days of the query."""
