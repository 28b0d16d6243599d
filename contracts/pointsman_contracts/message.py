"""The base of every message on the bus and the address that names its subject."""

from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict

Kind = Literal["rpc", "evt", "rec", "sig", "ctl", "kv"]


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


new_part: Final = object.__new__
"""A part without fields, of the class that is given."""
# Called as it is, it sets the fields in half the time of `object.__setattr__`.
set_fields: Final = vars(BaseModel)["__dict__"].__set__
"""Gives a new part its fields, as a dictionary of all of them in their order. Nothing is validated."""
_EMPTY_SLOTS: Final = frozenset({"__pydantic_extra__", "__pydantic_private__"})


class Part(BaseModel):
    """A value inside a message. Frozen; unknown fields are ignored so that newer senders can be read.

    `bytes` travel as URL-safe base64.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    def with_fields(self, changes: Mapping[str, object]) -> Self:
        """A copy with other values in some fields, which aren't validated. Raises TypeError for a field that the class
        doesn't have. Takes a third of the time of `model_copy`; subclasses type the changes."""
        own = self.__dict__
        fields = {**own, **changes}
        if len(fields) != len(own):
            unknown = ", ".join(sorted(fields.keys() - own.keys()))
            raise TypeError(f"{type(self).__name__} has no field {unknown}")
        made = new_part(type(self))
        set_fields(made, fields)
        return made

    if not TYPE_CHECKING:  # as pydantic's own, it would hide misspelt names from the type checker

        def __getattr__(self, name: str) -> object:
            # A part that the product builds sets its fields alone. Pydantic's other three slots stay empty, and read as
            # those of a part without extra and private attributes: no message is encoded by which fields were set.
            if name == "__pydantic_fields_set__":
                return set[str]()
            return None if name in _EMPTY_SLOTS else super().__getattr__(name)


P = TypeVar("P", bound=type[Part])
_ABSENT: Final = object()


def unchecked(kind: P) -> P:
    """Make the constructor of a part take its values as they are: the product builds such parts for every request, with
    values whose types the type checker has seen. Names are checked, and decoding validates as ever.

    The time to build falls to about half. As in `dataclasses`, the constructor is written as text and compiled.
    """
    names: dict[str, object] = {"_set_fields": set_fields, "_ABSENT": _ABSENT}
    parameters, values = list[str](), list[str]()
    for name, field in kind.model_fields.items():
        default, value = "", name
        if field.default_factory is not None:
            names[f"_{name}_factory"] = field.default_factory
            default, value = "=_ABSENT", f"_{name}_factory() if {name} is _ABSENT else {name}"
        elif not field.is_required():
            names[f"_{name}_default"] = field.default
            default = f"=_{name}_default"
        parameters.append(f"{name}{default}")
        values.append(f"'{name}': {value}")
    text = f"""def __init__(self, *, {", ".join(parameters)}):
    _set_fields(self, {{{", ".join(values)}}})
"""
    exec(text, names)  # noqa: S102 - the text consists of names of fields
    constructor = cast("FunctionType", names["__init__"])
    constructor.__qualname__ = f"{kind.__qualname__}.__init__"
    # By this mark pydantic knows that decoding needn't call it.
    vars(constructor)["__pydantic_base_init__"] = True
    type.__setattr__(kind, "__init__", constructor)
    return kind


class Message(Part):
    """A whole message. A concrete message declares its `address`."""

    address: ClassVar[Address]

    def encode(self) -> bytes:
        """The JSON document, without fields that are None (absent and None mean the same on the wire)."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Parse a JSON document. Raises `pydantic.ValidationError` when it isn't one of these messages."""
        if isinstance(data, memoryview):
            data = data.tobytes()
        return cls.__pydantic_validator__.validate_json(data)
