"""Changes of headers, for Envoy to make."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.sending.header_edits import folded, folded_answer
from pointsman_edge.taking_in.request_headers import HOP_BY_HOP, internal

Header = tuple[bytes, bytes]

_ENVOYS_OWN: Final = HOP_BY_HOP - {b"expect"} | {
    b"host", b"content-length", b"x-request-id", b"traceparent", b"x-forwarded-proto",
}  # fmt: skip
"""Envoy writes these itself, or they are set in every request that goes on."""


class HeaderChanges(NamedTuple):
    """Headers to set (overwriting) and to remove; lower-case names."""

    set: list[Header]
    remove: list[str]


def stripped(sent: Iterable[bytes], kept: Iterable[bytes]) -> list[str]:
    """Names of the headers that the client sent and the engine doesn't get. `kept`: of those that it gets."""
    gone = {name for name in {*sent}.difference(kept) if name not in _ENVOYS_OWN and not name.startswith(b":")}
    return [name.decode("ascii", "replace") for name in sorted(gone)]


def edited(edits: Sequence[HeaderEdit], present: Collection[bytes], dropped: Callable[[str], None]) -> HeaderChanges:
    """A decision's edits; what isn't `present` needn't be removed. `dropped` as `folded`."""
    return _changes(folded(edits, dropped), present)


def answered(changes: HeaderChanges, edits: Sequence[HeaderEdit], present: Collection[bytes]) -> HeaderChanges:
    """`changes` of an answer's headers with the edits of the stages, of those headers that they may change."""
    if not edits:
        return changes
    last = folded_answer(edits)
    set_there, removed = _changes(last, present)
    all_set = [*(header for header in changes.set if header[0] not in last), *set_there]
    names = {name.decode("ascii") for name, _ in set_there}
    return HeaderChanges(all_set, [name for name in [*changes.remove, *removed] if name not in names])


def _changes(last: dict[bytes, bytes | None], present: Collection[bytes]) -> HeaderChanges:
    return HeaderChanges(
        [(name, value) for name, value in last.items() if value is not None],
        [name.decode("ascii") for name, value in last.items() if value is None and name in present],
    )


def client_headers(sent: Sequence[Header], own: Sequence[Header], *, changed: bool) -> list[Header]:
    """The headers of an answer as the client gets them: the engine's, and `own`. `changed`: the body isn't as long as
    the engine said."""
    names = {name for name, _ in own}
    kept = [
        header
        for header in sent
        if not header[0].startswith(b":")
        and not internal(header[0])
        and header[0] not in names
        and not (changed and header[0] == b"content-length")
    ]
    return [*kept, *own]


def header_changes(sent: Sequence[Header], wanted: Sequence[Header]) -> HeaderChanges:
    """The changes that turn the headers that Envoy has into `wanted`."""
    there, kept = set(sent), {name for name, _ in wanted}
    gone = {name for name, _ in sent if name not in kept and not name.startswith(b":")}
    return HeaderChanges(
        [header for header in wanted if header not in there], [name.decode("ascii", "replace") for name in sorted(gone)]
    )
