# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# Any type of Python is read here.
"""Holds JSON against the request types of a maker's SDK (TypedDicts), strictly: a member that isn't listed is wrong.

pydantic reads the same types, but takes any iterable for `Iterable[…]` and looks into it only once it is consumed, when
the choice of a union is made.
"""

import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel

Problems = list[str]
_WRAPPERS: Final = (typing_extensions.Required, typing_extensions.NotRequired, typing_extensions.Annotated)
_TAGS: Final = ("type", "role")


def mismatches(value: object, kind: Any, where: str = "$") -> Problems:
    """How `value`, decoded JSON, differs from the type; empty if it doesn't."""
    kind = _bare(kind)
    origin = get_origin(kind)
    if kind in (Any, object):
        return []
    if origin is Literal:
        return [] if value in get_args(kind) else [f"{where}: {value!r} isn't one of {get_args(kind)}"]
    if origin is Union or origin.__class__.__name__ == "UnionType":
        return _of_union(value, get_args(kind), where)
    if typing_extensions.is_typeddict(kind):
        return _of_object(value, kind, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return [f"{where}: not an object"]
        inner = get_args(kind)[1]
        return [each for name, item in value.items() for each in mismatches(item, inner, f"{where}.{name}")]
    if _is_list(kind, origin):
        if not isinstance(value, list):
            return [f"{where}: not an array"]
        inner = get_args(kind)[0]
        return [each for place, item in enumerate(value) for each in mismatches(item, inner, f"{where}[{place}]")]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [f"{where}: an answer's type"]
    return [] if _is_plain(value, kind) else [f"{where}: {value!r:.60} isn't {getattr(kind, '__name__', kind)}"]


def _bare(kind: Any) -> Any:
    while get_origin(kind) in _WRAPPERS or hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    return kind


def _is_list(kind: Any, origin: Any) -> bool:
    name = getattr(origin or kind, "__name__", "")
    return origin in (list, Iterable, Sequence) or name in ("SequenceNotStr", "Iterable", "Sequence", "List")


def _is_plain(value: object, kind: Any) -> bool:
    if kind is None or kind is type(None):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind is str and isinstance(value, str)


def _of_object(value: object, kind: Any, where: str) -> Problems:
    if not isinstance(value, dict):
        return [f"{where}: not an object"]
    hints = _hints(kind)
    given = typing.cast("dict[str, object]", value)
    found = [f"{where}.{name}: missing" for name in kind.__required_keys__ if name not in given]
    if getattr(kind, "__pydantic_config__", {}).get("extra") != "allow":
        found += [f"{where}.{name}: no such member" for name in given if name not in hints]
    for name, item in given.items():
        if name in hints:
            found += mismatches(item, hints[name], f"{where}.{name}")
    return found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing_extensions.get_type_hints(kind, include_extras=True)


def _of_union(value: object, kinds: tuple[Any, ...], where: str) -> Problems:
    """Those of the alternative that fits best: the one with the value's own tag, where there is one."""
    best: Problems | None = None
    for kind in kinds:
        if not _has_tag(value, kind):
            continue
        found = mismatches(value, kind, where)
        if not found:
            return []
        if best is None or len(found) < len(best):
            best = found
    return best or [f"{where}: {value!r:.60} is none of the alternatives"]


def _has_tag(value: object, kind: Any) -> bool:
    bare = _bare(kind)
    if not isinstance(value, dict) or not typing_extensions.is_typeddict(bare):
        return True
    hints = _hints(bare)
    given = typing.cast("dict[str, object]", value)
    return all(
        given[tag] in get_args(_bare(hints[tag]))
        for tag in _TAGS
        if tag in given and tag in hints and get_origin(_bare(hints[tag])) is Literal
    )
