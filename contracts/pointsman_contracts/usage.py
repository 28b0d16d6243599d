"""Usage of requests, for billing."""

from typing import ClassVar

from pointsman_contracts.identity import Identity
from pointsman_contracts.message import Address, Message, Part, unchecked
from pointsman_contracts.response import Usage

NO_TENANT = "-"
"""Stands for the tenant in the subject of a record that has none."""


@unchecked
class UsageRecord(Message):
    """One entry of the usage ledger: what one request used. Kept in the stream `PM_USAGE`, each once.

    Published by the recorder, from `ResponseCompleted`; for any reader."""

    address: ClassVar[Address] = Address("rec", "usage", "record", route=("tenant",))

    key: str
    """Names the request among all: a client may use a request id again when the one before has ended."""
    request_id: str
    at_ms: int
    """When the request ended, unix milliseconds."""
    identity: Identity = Identity()
    model: str = ""
    """Name that the configuration knows the model by that answered; empty when the request never had one."""
    pool: str | None = None
    provider: str | None = None
    api: str = ""
    stream: bool = False
    status: int
    outcome: str
    """As `ResponseCompleted.outcome`."""
    usage: Usage = Usage()
    cost: float | None = None
    """`cost_nanos` in dollars, rounded to a binary float: for readers of earlier versions."""
    cost_nanos: int | None = None
    """In nano-dollars; None for a model without a price, and in records of earlier versions."""


class UsageQuery(Message):
    """Asks for sums of the usage ledger. Sent by tools; answered by a recorder with `UsageSums`."""

    address: ClassVar[Address] = Address("ctl", "usage", "sums")

    by: tuple[str, ...] = ("tenant", "model", "day")
    """Dimensions of the rows: `tenant`, `subject`, `key`, `model`, `day`."""
    since: str | None = None
    """First day (UTC), as `2026-03-01`."""
    until: str | None = None
    """Last day (UTC), included."""
    tenant: str | None = None
    model: str | None = None
    key: str | None = None


class UsageSum(Part):
    """The requests of one row, summed. A dimension that wasn't asked for is None."""

    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    model: str | None = None
    day: str | None = None
    requests: int = 0
    failed: int = 0
    """Those of them whose client got an error, or left."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: int = 0
    """Requests whose tokens neither engine nor provider reported in full."""
    cost: float = 0.0
    """`cost_nanos` in dollars, rounded to a binary float: for readers of earlier versions."""
    cost_nanos: int = 0
    """In nano-dollars, of the requests that have a price."""
    unpriced: int = 0
    """Requests that used tokens of a model without a price."""


class LostSum(Part):
    """Events of one type that the stream doesn't have: their numbers are missing."""

    type: str
    """Type id, e.g. `response.completed.v1`. Each of those is a request without a record."""
    count: int
    from_ms: int
    """Unix milliseconds between which they were published."""
    to_ms: int


class UsageSums(Message):
    """The answer to `UsageQuery`."""

    address: ClassVar[Address] = Address("ctl", "usage", "sums-answer", route=("inbox",))

    recorder: str
    """Instance that answers."""
    rows: tuple[UsageSum, ...] = ()
    """By day, tenant, subject, key, model."""
    more: bool = False
    """Rows are missing, because there are more than a message takes."""
    behind: int = 0
    """Events that the recorder hasn't read yet."""
    unpriced_models: tuple[str, ...] = ()
    """Names of models without a price that these requests used, at most 20."""
    lost: tuple[LostSum, ...] = ()
    """Events that were lost on the days of the query."""
