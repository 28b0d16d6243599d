"""Values of a request's body, by the shape that they must have."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import cast

from pointsman_models.tokenization.failure import NotTokenized

Json = dict[str, object]
"""A JSON object."""
Field = Callable[[str], object]
"""A field of a request's body by its name; None when absent or null."""


def list_or_none(value: object) -> list[object] | None:
    """The value where it is an array."""
    return cast("list[object]", value) if isinstance(value, list) else None


def object_at(value: object, where: str) -> Json:
    """The value, which must be an object. Raises NotTokenized that names the place."""
    if not isinstance(value, dict):
        raise NotTokenized("shape", f"{where}: not an object")
    return cast("Json", value)


def count_same(former: Sequence[object], now: Sequence[object]) -> int:
    """Leading items that are the same objects."""
    same = list(map(is_, former, now))
    return len(same) if all(same) else same.index(False)
