"""The errors of a document in the words of its author, not of the validation library."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import ValidationError

_WORDS: Final = {
    "tuple_type": "Input should be a list",
    "list_type": "Input should be a list",
    "dict_type": "Input should be a section of keys",
    "model_type": "Input should be a section of keys",
    "string_type": "Input should be a text",
    "bool_type": "Input should be true or false",
    "bool_parsing": "Input should be true or false",
}
_BRANCH: Final = re.compile(r"[a-z-]+\[.*\]", re.DOTALL)
"""A step to one of a key's alternatives, such as `literal['a','b']`: it isn't in the document."""


class Wrong(NamedTuple):
    """One thing that is wrong."""

    kind: str
    """Pydantic's type of the error."""
    path: tuple[str | int, ...]
    text: str
    cause: object = None
    """The error that a check of this project raised."""


def wrongs(error: ValidationError) -> list[Wrong]:
    """Everything that is wrong, each thing once: alternatives of one key together, and of a list that lacks items
    nothing when it lacks them because they are wrong."""
    found: list[Wrong] = []
    for wrong in _each(error):
        same = next(
            (at for at, other in enumerate(found) if (other.kind, other.path) == (wrong.kind, wrong.path)), None
        )
        if same is not None and wrong.kind == "literal_error":
            found[same] = wrong._replace(text=_either(found[same].text, wrong.text))
        else:
            found.append(wrong)
    return [wrong for wrong in found if wrong.kind != "too_short" or not _has_below(wrong, found)]


def _each(error: ValidationError) -> Iterator[Wrong]:
    for item in error.errors(include_url=False):
        path = tuple(step for step in item["loc"] if not (isinstance(step, str) and _BRANCH.fullmatch(step)))
        kind, context = item["type"], item.get("ctx", {})
        text = _WORDS.get(kind, item["msg"].removeprefix("Value error, "))
        if kind == "string_type" and isinstance(item["input"], bool | int | float):
            what = "yes, no, true and false" if isinstance(item["input"], bool) else "the number"
            text = f"{text}: put {what} in quotes"
        if kind == "too_short":
            least = context.get("min_length", 1)
            text = f"at least {least} {'entry is' if least == 1 else 'entries are'} needed"
        yield Wrong(kind, path, text, context.get("error"))


def _either(first: str, second: str) -> str:
    *values, last = dict.fromkeys(re.findall(r"'[^']*'", f"{first} {second}"))
    return f"Input should be {', '.join(values)} or {last}"


def _has_below(wrong: Wrong, found: list[Wrong]) -> bool:
    depth = len(wrong.path)
    return any(len(other.path) > depth and other.path[:depth] == wrong.path for other in found)
