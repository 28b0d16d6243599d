"""A bound on what decoding may cost: a body of four megabytes can hold two million values.

The decoder holds the interpreter for as long as it runs, in whatever thread: about 40 ns for a number, 100 ns for an
array or object. A body of text costs a hundredth of that, so only a large and dense one needs to be looked at.
"""

import re
from typing import Final

from pointsman_core.refusal import Refusal

LOOK_ABOVE: Final = 131072
"""Bytes; a smaller body can't hold enough values to matter."""
CONTAINER_SHARE: Final = 4
"""Arrays and objects may be one part in so many of the values."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_MARKS: Final = b",[{"


def check_density(raw: bytes | memoryview, max_values: int) -> None:
    """Refuse a body with more than `max_values` values or a quarter as many arrays and objects. Raises Refusal 400."""
    if len(raw) <= LOOK_ABOVE:
        return
    text = bytes(raw)
    most_containers = max_values // CONTAINER_SHARE
    # Commas and brackets within texts count here, so that this can only be too high.
    if len(text) - len(text.translate(None, _MARKS)) <= most_containers:
        return
    commas = containers = position = 0
    for string in _STRING.finditer(text):
        between = text[position : string.start()]
        commas += between.count(b",")
        containers += between.count(b"[") + between.count(b"{")
        position = string.end()
        if commas >= max_values or containers > most_containers:
            break
    else:
        rest = text[position:]
        commas += rest.count(b",")
        containers += rest.count(b"[") + rest.count(b"{")
    if commas >= max_values or containers > most_containers:
        raise Refusal(
            400,
            f"The body holds more than {max_values:,} values or {most_containers:,} arrays and objects; "
            "send less in one request, and long prompts as text.",
            code="body_too_complex",
        )
