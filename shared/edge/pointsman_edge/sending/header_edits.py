"""Headers that preprocessing and stages set and remove, of requests and of answers.

The edits of several parties fold, in order: of those of one header, the last one counts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.header_names import EDGES_OWN, HEADER_NAME
from pointsman_edge.taking_in.request_headers import HOP_BY_HOP

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(HEADER_NAME)
_NAME_OF: Final = itemgetter(0)
_KEPT: Final = HOP_BY_HOP | {
    b"content-length", b"content-type", b"content-encoding", b"date", b"server", b"x-request-id", b"request-id",
}  # fmt: skip
"""Headers that frame or identify an answer: stages can't change them."""
INVALID: Final = "invalid"
"""Counted instead of a name that no header can have."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class _Name:
    """The properties of a header name."""

    written: bytes
    """In lower case."""
    valid: bool
    frames_answer: bool
    frames_request: bool


@lru_cache(maxsize=256)
def _name(name: str) -> _Name:
    # Stages write the same few names into every request.
    lower = name.lower()
    written = lower.encode("ascii", "replace")
    # Some servers read `content_length` as `content-length`.
    frames_request = lower.replace("_", "-") in EDGES_OWN
    return _Name(written, _NAME.fullmatch(name) is not None, written in _KEPT, frames_request)


def _silent(name: str) -> None:
    del name


def folded(edits: Sequence[HeaderEdit], dropped: Callable[[str], None] = _silent) -> dict[bytes, bytes | None]:
    """The new values of a request's headers by lower-case name; None: removed. `dropped` is called with the name of
    each header that an edit may not touch. A value may come from a request, so control characters become spaces."""
    last: dict[bytes, bytes | None] = {}
    for edit in edits:
        name = _name(edit.name)
        if name.frames_request or not name.valid:
            dropped(name.written.decode("ascii") if name.valid else INVALID)
        else:
            value = edit.value
            last[name.written] = None if value is None else _CONTROL.sub(" ", value).encode("utf-8", "replace")
    return last


def folded_answer(edits: Sequence[HeaderEdit]) -> dict[bytes, bytes | None]:
    """Like `folded`, for an answer: the headers that frame it stay."""
    last: dict[bytes, bytes | None] = {}
    for edit in edits:
        name = _name(edit.name)
        if name.valid and not name.frames_answer:
            value = edit.value
            last[name.written] = None if value is None else _CONTROL.sub(" ", value).encode("utf-8", "replace")
    return last


def with_edits(headers: list[Header], last: dict[bytes, bytes | None]) -> list[Header]:
    """The headers with the changes of `folded`."""
    if not last:
        return headers
    if not last.keys().isdisjoint(map(_NAME_OF, headers)):
        headers = [header for header in headers if header[0] not in last]
    if None in last.values():
        return headers + [(name, value) for name, value in last.items() if value is not None]
    return [*headers, *last.items()]  # pyright: ignore[reportReturnType] - no value is None


def edited_headers(
    headers: list[Header], edits: Sequence[HeaderEdit], dropped: Callable[[str], None] = _silent
) -> list[Header]:
    """A request's headers with these edits; `dropped` as of `folded`."""
    if len(edits) == 1:
        # As of most decisions, which only name the engine.
        edit = edits[0]
        name, value = _name(edit.name), edit.value
        new = name.valid and not name.frames_request and name.written not in map(_NAME_OF, headers)
        if new and value is not None:
            return [*headers, (name.written, _CONTROL.sub(" ", value).encode("utf-8", "replace"))]
    return with_edits(headers, folded(edits, dropped))


def edited_answer_headers(headers: list[Header], edits: Sequence[HeaderEdit]) -> list[Header]:
    """An answer's headers with the edits of stages."""
    return with_edits(headers, folded_answer(edits)) if edits else headers
