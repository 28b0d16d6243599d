"""Engine time: how long engines of one's own were at work for which clients, and what that cost."""

from typing import ClassVar

from pointsman_contracts.message import Address, Part, always
from pointsman_contracts.usage import RecorderAnswer, UsageQuery


class EngineTimeQuery(UsageQuery, frozen=True, kw_only=True):
    """Asks for the engine time of requests. `by` may name `pool` and `engine`, too. Sent by tools; answered by a
    recorder with `EngineTimeSums`."""

    address: ClassVar[Address] = Address("ctl", "engine", "time")


class EngineTimeSum(Part, frozen=True, kw_only=True):
    """The engine time of one row. A dimension that wasn't asked for is None."""

    state: str
    """`answers`: the share of answers, each of which is in one row; `unknown`: only answers without usage ran, or the
    engine was listed and silent or unreachable; `idle`: nothing ran. The last two are of no client."""
    day: str | None = None
    pool: str | None = None
    engine: str | None = None
    tenant: str | None = None
    subject: str | None = None
    key: str | None = None
    model: str | None = None
    answers: int = always(0)
    estimated: int = always(0)
    """Answers whose prompt, cached or answer tokens weren't all reported."""
    time_us: int = always(0)
    """Microseconds."""
    time_nanos: int = always(0)
    """What that time cost, in nano-dollars."""


class EngineTimeSums(RecorderAnswer, frozen=True, kw_only=True):
    """The answer to `EngineTimeQuery`."""

    address: ClassVar[Address] = Address("ctl", "engine", "time-answer", route=("inbox",))

    rows: tuple[EngineTimeSum, ...] = always(())
    """The longest first, those of answers before `unknown` and `idle`."""
    total_us: int = always(0)
    """All time of the engines on the days of the question, whatever clients and models it asks for."""
    total_nanos: int = always(0)
