"""Questions to limits, their verdicts and grants, as preprocessors hold, write and read them.

They are made by position in C, in a tenth of the time of the messages' parts. Fields are those of the messages in
`limits`, in their order. Those with default values are left out on the wire; readers of every version fill them in.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeVar, cast

import msgspec

from pointsman_contracts.limits import (
    BudgetAsk,
    BudgetStanding,
    LimitAsk,
    LimitAsks,
    LimitKept,
    LimitVerdicts,
    LimitWindow,
)
from pointsman_contracts.message import Message, Part
from pointsman_contracts.part_reader import part_reader

S = TypeVar("S", bound=msgspec.Struct)


class InnerAsk(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A `LimitAsk`."""

    edge: str
    request_id: str
    attempt: int
    limit: str
    shard: int
    scope: str
    windows: tuple[LimitWindow, ...]
    cost: float
    risk: float
    reactive: bool
    kept: bool
    until_ms: int
    open_s: float | None = None
    budget: BudgetAsk | None = None
    follows: bool | None = None

    @classmethod
    def of(cls, ask: "AnyAsk") -> "InnerAsk":
        """The question in this form."""
        return ask if isinstance(ask, InnerAsk) else cls(**vars(ask))


AnyAsk = LimitAsk | InnerAsk


class InnerAsks(msgspec.Struct, frozen=True, gc=False):
    """`LimitAsks`."""

    asks: tuple[InnerAsk, ...]


class InnerStanding(msgspec.Struct, frozen=True, gc=False):
    """A `WindowStanding`."""

    remaining: float
    reset_s: float


class InnerVerdict(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A `LimitVerdict`."""

    outcome: Literal["admitted", "refused", "elsewhere"]
    standings: tuple[InnerStanding, ...] = ()
    window: int = 0
    retry_s: float | None = None
    keeper: str = ""
    budget: BudgetStanding | None = None


class InnerVerdicts(msgspec.Struct, frozen=True, gc=False):
    """`LimitVerdicts`."""

    verdicts: tuple[InnerVerdict, ...]


class InnerGrant(msgspec.Struct, frozen=True, gc=False):
    """A `LimitGrant`."""

    number: int
    at: float
    ask: InnerAsk


class InnerKept(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A `LimitKept`."""

    keeper: str
    run: str
    number: int
    at: float
    epochs: tuple[int, ...] = ()
    grants: tuple[InnerGrant, ...] = ()
    retold: tuple[InnerGrant, ...] = ()


def known_window(unit: str, amount: float, period_s: float = 0.0, burst: float = 0.0, measure: str = "") -> LimitWindow:
    """The window of these values: equal ones are one object, which is found in the books without a comparison. Raises
    ValueError."""
    return _window((("unit", unit), ("amount", amount), ("period_s", period_s), ("burst", burst), ("measure", measure)))


@lru_cache(maxsize=1024)
def _window(fields: tuple[tuple[str, str | float], ...]) -> LimitWindow:
    return LimitWindow.model_validate(dict(fields))


def _part(kind: type, fields: object) -> object:
    """A part of the fields that were read. ValueError or TypeError when they aren't its."""
    if kind is LimitWindow and isinstance(fields, dict):
        return _window(tuple(cast("dict[str, str | float]", fields).items()))
    return cast("type[Part]", kind).model_validate(fields)


def _reader(kind: type[S], message: type[Message]) -> Callable[[bytes], S]:
    def whole(payload: bytes) -> S:
        return msgspec.convert(message.decode(payload).model_dump(), kind, dec_hook=_part)

    return part_reader(kind, whole, _part)


write_limits: Final = msgspec.json.Encoder(enc_hook=vars).encode
"""The message of questions, verdicts or grants."""
read_asks: Final = _reader(InnerAsks, LimitAsks)
"""Questions as they arrived. Raises `pydantic.ValidationError`, as do the others."""
read_verdicts: Final = _reader(InnerVerdicts, LimitVerdicts)
read_kept: Final = _reader(InnerKept, LimitKept)
