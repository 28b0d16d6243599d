"""Headers that stages set and remove, of requests and of answers."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.domain.request_headers import HOP_BY_HOP

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_KEPT: Final = HOP_BY_HOP | {
    b"content-length", b"content-type", b"content-encoding", b"date", b"server", b"x-request-id", b"request-id",
}  # fmt: skip
"""What an answer is framed and known by isn't for stages to change."""


class _Name(NamedTuple):
    """What is known of a header by its name."""

    written: bytes
    """In lower case."""
    valid: bool
    frames: bool


@lru_cache(maxsize=256)
def _name(name: str) -> _Name:
    # Stages write the same few names into every request.
    written = name.lower().encode("ascii", "replace")
    return _Name(written, _NAME.fullmatch(name) is not None, written in _KEPT)


def edited_headers(headers: list[tuple[bytes, bytes]], edits: Sequence[HeaderEdit]) -> list[tuple[bytes, bytes]]:
    """Set and remove headers. A value may come from a request, so control characters become spaces."""
    if not edits:
        return headers
    changed = {_name(edit.name).written for edit in edits}
    kept = [header for header in headers if header[0] not in changed]
    kept += [
        (name.written, _CONTROL.sub(" ", edit.value).encode("utf-8", "replace"))
        for edit in edits
        if edit.value is not None and (name := _name(edit.name)).valid
    ]
    return kept


def edited_answer_headers(headers: list[tuple[bytes, bytes]], edits: Sequence[HeaderEdit]) -> list[tuple[bytes, bytes]]:
    """As `edited_headers`, for an answer: what frames it stays."""
    return edited_headers(headers, [edit for edit in edits if not frames(edit.name)])


def frames(name: str) -> bool:
    """Whether a header is one that an answer is framed or known by."""
    return _name(name).frames
