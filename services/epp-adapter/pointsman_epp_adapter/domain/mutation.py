"""What changes in a request's headers on its way from Envoy to the engine."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.domain.request_headers import HOP_BY_HOP

Header = tuple[bytes, bytes]

_ENVOYS_OWN: Final = HOP_BY_HOP | {
    b"host", b"content-length", b"expect", b"x-request-id", b"traceparent", b"x-forwarded-proto",
}  # fmt: skip
"""Envoy writes these itself, or they are set in every request that goes on."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class HeaderChanges(NamedTuple):
    """Headers to set (overwriting) and to remove; lower-case names."""

    set: list[Header]
    remove: list[str]


def stripped(sent: Iterable[Header], kept: Iterable[Header]) -> list[str]:
    """Names of the headers that the client sent and the engine doesn't get."""
    passing = {name for name, _ in kept}
    gone = {name for name, _ in sent if name not in passing and name not in _ENVOYS_OWN and not name.startswith(b":")}
    return [name.decode("ascii", "replace") for name in sorted(gone)]


def edited(edits: Sequence[HeaderEdit], present: Collection[bytes]) -> HeaderChanges:
    """A decision's edits. A value may come from a request, so control characters become spaces; what isn't `present`
    needn't be removed."""
    changes = HeaderChanges([], [])
    for edit in edits:
        name = edit.name.lower()
        if not _NAME.fullmatch(name):
            continue
        if edit.value is not None:
            changes.set.append((name.encode("ascii"), _CONTROL.sub(" ", edit.value).encode("utf-8", "replace")))
        elif name.encode("ascii") in present:
            changes.remove.append(name)
    return changes
