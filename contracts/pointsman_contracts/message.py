"""The base of every message on the bus and the address that names its subject."""

import operator
from collections.abc import Callable, Mapping
from functools import cache
from itertools import repeat
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
)

import msgspec

from pointsman_contracts.packed_bytes import pack, unpack

if TYPE_CHECKING:
    import pydantic

    JsonValue: TypeAlias = pydantic.JsonValue
else:
    JsonValue = Any
    """Any value of a JSON document: msgspec reads it without a type."""

Kind = Literal["rpc", "evt", "rec", "sig", "ctl", "work", "kv"]
T = TypeVar("T")
P = TypeVar("P", bound="Part")


class Address(NamedTuple):
    """Where messages of one type travel: `pm.<kind>.<domain>.<name>.v<version>[.<route>…]`.

    `route` names the variable tokens that follow the version, in order, e.g. `("pool", "worker")`. A value of a
    key-value bucket has kind `kv` and travels as `$KV.<bucket>.<route>…`.
    """

    kind: Kind
    domain: str
    name: str
    version: int = 1
    route: tuple[str, ...] = ()
    bucket: str = ""

    @property
    def type_id(self) -> str:
        """The value of the `Pm-Type` header and the stem of the schema file, e.g. `request.scheduled.v1`."""
        return f"{self.domain}.{self.name}.v{self.version}"


class Blob(bytes):
    """Bytes in a message; they travel as URL-safe base64. orjson refuses them as they are, and reads a `memoryview` of
    them."""


NO_BYTES: Final = cast("Blob", b"")
"""Travels as an empty text. It is plain bytes, for msgspec writes no default of another class into a schema."""


class MalformedMessage(ValueError):
    """A document isn't the message that it should be. The text has nothing of the document's values."""

    def __init__(self, name: str, problem: str, where: str = "") -> None:
        super().__init__(f"{name}: {problem}{f' at {where}' if where else ''}")
        self.problem = problem
        """e.g. ``Expected `int`, got `str` ``."""
        self.where = where
        """Path of the faulty value, e.g. `request.blocks`; empty for the document itself."""

    @classmethod
    def from_error(cls, name: str, error: Exception) -> Self:
        """From an error of msgspec or `unpack`."""
        problem, _, path = str(error).partition(" - at `")
        if problem.startswith("Invalid "):
            problem = problem.partition(" '")[0]  # the value follows
        return cls(name, problem, path.removesuffix("`").removeprefix("$").removeprefix("."))


def always(default: T) -> T:
    """A default that is written to the wire too. A field whose default is given plainly is left out while it has that
    value, as every field that is None."""
    return msgspec.field(default_factory=repeat(default).__next__)


class Part(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A value inside a message. Unknown fields are ignored so that newer senders can be read.

    A constructor takes the values as they are; types are checked where a document is read.
    """


class Message(Part, frozen=True):
    """A whole message. A concrete message declares its `address`."""

    address: ClassVar[Address]

    def encode(self) -> bytes:
        """The JSON document, without fields that are None (absent and None mean the same on the wire)."""
        return write(self)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Parse a JSON document. Raises MalformedMessage when it isn't one of these messages."""
        try:
            return _decoder(cls)(data)
        except (ValueError, RecursionError) as error:  # the latter for a value that nests too deep
            raise MalformedMessage.from_error(cls.__name__, error) from None


def read_part(kind: type[P], document: bytes | str) -> P:
    """A part alone, from its JSON document. Raises MalformedMessage."""
    try:
        return _decoder(kind)(document)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage.from_error(kind.__name__, error) from None


def read_fields(kind: type[P], fields: Mapping[str, object]) -> P:
    """The part with these fields, which are read as those of a document. Raises MalformedMessage."""
    try:
        return msgspec.convert(fields, kind, strict=False, dec_hook=to_blob)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage.from_error(kind.__name__, error) from None


def fields_of(part: Part) -> dict[str, JsonValue]:
    """The document that `encode` writes, as values of Python."""
    return cast("dict[str, JsonValue]", msgspec.to_builtins(part, enc_hook=_plain))


def to_blob(kind: type, value: object) -> object:
    """A value of a field of bytes, for msgspec. Raises ValueError when the text isn't base64."""
    if isinstance(value, str):
        return kind(unpack(value))
    if isinstance(value, bytes):
        return kind(value)
    raise ValueError("Expected base64")


def _plain(value: object) -> object:
    """Bytes as text, and numbers of numpy, e.g. a rank that a plugin chose, as those of Python."""
    match value:
        case bytes():
            return pack(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case SupportsIndex():
            return operator.index(value)
        case _:
            raise TypeError(f"a message can't have a {type(value).__name__}")


@cache
def _decoder(kind: type[T]) -> Callable[[bytes | bytearray | memoryview | str], T]:
    # Stages in other languages may send a number in a string.
    return msgspec.json.Decoder(kind, strict=False, dec_hook=to_blob).decode


write: Final = msgspec.json.Encoder(enc_hook=_plain).encode
"""The JSON document of a part or a message."""
