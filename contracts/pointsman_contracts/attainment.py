"""Attainment: how many answers kept their service level, in sums that recorders make of every request's end."""

from typing import ClassVar

from pointsman_contracts.message import Address, Message, Part, always
from pointsman_contracts.usage import LostSum, RecorderAnswer


class AttainmentQuery(Message, frozen=True, kw_only=True):
    """Asks how many answers kept their service level. Sent by tools; answered by a recorder with `AttainmentSums`."""

    address: ClassVar[Address] = Address("ctl", "attainment", "sums")

    by: tuple[str, ...] = always(("service_class", "tenant", "model"))
    """Dimensions of the rows."""
    since_ms: int | None = None
    """Unix milliseconds; the sums begin with the minute of this time."""
    until_ms: int | None = None
    """Minutes that begin at this time or later don't count."""


class AttainmentSum(Part, frozen=True, kw_only=True):
    """The requests of one row that had a service level, summed. A dimension that wasn't asked for is None."""

    service_class: str | None = None
    """Empty where the client alone gave objectives."""
    tenant: str | None = None
    model: str | None = None
    kept: int = always(0)
    missed: int = always(0)
    unknown: int = always(0)
    """Answers of which it isn't known whether they kept their level."""
    refused: int = always(0)
    """Requests that were refused with 429, or because a stage was missing. They aren't among `missed`."""
    tokens: int = always(0)
    """Output tokens of the answers that kept their level."""
    promised: int = always(0)
    """Answers with an objective for the first token."""
    promised_us: int = always(0)
    """The sum of these objectives, in microseconds."""
    predicted: int = always(0)
    """Answers whose first token was predicted and observed."""
    predicted_us: int = always(0)
    """The sum of these predictions."""
    got_us: int = always(0)
    """The sum of the times that came true for them."""


class AttainmentSums(RecorderAnswer, frozen=True, kw_only=True):
    """The answer to `AttainmentQuery`."""

    address: ClassVar[Address] = Address("ctl", "attainment", "sums-answer", route=("inbox",))

    rows: tuple[AttainmentSum, ...] = always(())
    """Those with the most missed answers first."""
    since_ms: int
    """When the sums begin: at the question's time, or with the first minute that this recorder has."""
    until_ms: int
    """The recorder's time, or the question's if it is earlier."""
    lost: tuple[LostSum, ...] = always(())
    """Events that were lost in this time."""
