"""Reads whole messages by msgspec, in half to two thirds of the time of their own readers.

msgspec checks a document against structs that are made from the fields of the message. Each struct then becomes a part,
without another check.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import GenericAlias, UnionType
from typing import Annotated, Final, NamedTuple, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import asdict
from pydantic import JsonValue
from pydantic.fields import FieldInfo

from pointsman_contracts.message import Message, Part, new_part, set_fields
from pointsman_contracts.packed_bytes import pack, unpack

M = TypeVar("M", bound=Message)
W = TypeVar("W", bound=Message)

_Scalar = bool | int | float | str | None
_Flat = _Scalar | list[_Scalar] | dict[str, _Scalar]
_Nested = _Scalar | list[_Flat] | dict[str, _Flat]
_Free = _Scalar | list[_Nested] | dict[str, _Nested]
"""A free value, e.g. an attribute, with at most three lists and objects within each other. Deeper ones are left to the
message's own reader, which refuses those that nest too deep."""
_PACKED: Final[Mapping[object, object]] = {bytes: str, bytes | None: str | None}
"""Types of fields that travel as base64, and as which they are read."""


class _Form(NamedTuple):
    """How a kind of part is read."""

    struct: type[msgspec.Struct]
    build: Callable[[msgspec.Struct], Part]


def message_reader(kind: type[M], whole: Callable[[bytes], W]) -> Callable[[bytes], M | W]:
    """A reader of JSON documents. It returns a `kind`, or what `whole` reads where msgspec refuses the document, e.g.
    for a field of a newer version. It raises `pydantic.ValidationError` where `whole` refuses it too."""
    form = _form(kind)
    read = msgspec.json.Decoder(form.struct).decode
    build = cast("Callable[[msgspec.Struct], M]", form.build)

    def read_message(document: bytes) -> M | W:
        try:
            return build(read(document))
        except (ValueError, RecursionError):  # of msgspec or `unpack`
            pass
        return whole(document)

    return read_message


@cache
def _form(kind: type[Part]) -> _Form:
    fields = list[tuple[str, object, object]]()
    packed, nested = list[str](), list[tuple[str, Callable[[object], object]]]()
    for name, field in kind.model_fields.items():
        default: object = msgspec.NODEFAULT if field.is_required() else field.default
        if field.default_factory is not None:
            default = msgspec.field(default_factory=cast("Callable[[], object]", field.default_factory))
        inner = _part_in(field.annotation)
        if inner is not None:
            nested.append((name, _conversion(inner, several=get_origin(field.annotation) is tuple)))
        elif field.annotation in _PACKED:
            packed.append(name)
            default = pack(default) if isinstance(default, bytes) else default
        fields.append((name, _read_as(field), default))
    struct = msgspec.defstruct(
        kind.__name__,
        cast("list[tuple[str, type, object]]", fields),
        gc=False,
        kw_only=True,
        forbid_unknown_fields=True,
    )

    def build(read: msgspec.Struct) -> Part:
        made, values = new_part(kind), asdict(read)
        for name in packed:
            text: str | None = values[name]
            if text is not None:
                values[name] = unpack(text) if text else b""
        for name, conversion in nested:
            value: object = values[name]
            if value:
                values[name] = conversion(value)
        set_fields(made, values)
        return made

    return _Form(struct, build)


def _conversion(inner: type[Part], *, several: bool) -> Callable[[object], object]:
    build = cast("Callable[[object], Part]", _form(inner).build)
    return (lambda reads: tuple(map(build, cast("tuple[object, ...]", reads)))) if several else build


def _read_as(field: FieldInfo) -> object:
    """The type that msgspec reads a field as. TypeError for a bound that isn't known here."""
    read_as = _PACKED.get(field.annotation) or _translated(field.annotation)
    for bound in cast("list[object]", field.metadata):
        least: object = getattr(bound, "ge", None)
        if not isinstance(least, int):
            raise TypeError(f"{bound!r} is a bound of an unknown kind")
        read_as = Annotated[read_as, msgspec.Meta(ge=least)]
    return read_as


def _translated(annotation: object) -> object:
    """The annotation with structs for parts."""
    if annotation is bytes:
        raise TypeError("bytes inside another type than `bytes | None` aren't read")
    if annotation is JsonValue:
        return _Free
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return _form(annotation).struct
    origin, arguments = get_origin(annotation), tuple(map(_translated, get_args(annotation)))
    if origin is UnionType:
        return Union[arguments]  # noqa: UP007 - `|` takes no tuple
    if origin is tuple or origin is dict:
        return GenericAlias(origin, arguments)
    return cast("object", annotation)


def _part_in(annotation: object) -> type[Part] | None:
    """The kind of part that a field has one or several of; None for any other field."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((part for each in get_args(annotation) if (part := _part_in(each)) is not None), None)
