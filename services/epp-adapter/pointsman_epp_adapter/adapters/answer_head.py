"""The message that lets the headers of an engine's answer pass."""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.taking_in.request_headers import internal
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.answer_fields import SHORTEST_ID, blank_id
from pointsman_epp_adapter.domain.envoy_events import BodyMode
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, answered

_NAME: Final = itemgetter(0)


class OwnHeaders(NamedTuple):
    """The gateway's own headers in an answer."""

    request_id: bytes
    level: bytes
    model: list[Header]
    """The model that was chosen, where the client asked for another name."""
    further: list[Header]
    """Those that few answers have."""

    def list_headers(self) -> list[Header]:
        """In their order."""
        return [*_ours(self.request_id, self.level, self.model), *self.further]


def passing(
    sent: list[Header], own: OwnHeaders, edits: Sequence[HeaderEdit], mode: BodyMode | None, gone: tuple[str, ...]
) -> bytes:
    """The message: `sent` by the engine, with `edits` of the stages; `mode`, when it isn't None, is how Envoy is to
    send the body; `gone` are further names that the client doesn't get."""
    names = tuple(map(_NAME, sent))
    if edits or own.further or len(own.request_id) < SHORTEST_ID:
        return wire.response_head(
            answered(HeaderChanges(own.list_headers(), _removed(names, gone)), edits, frozenset(names)), mode
        )
    return own.request_id.join(
        _known(len(own.request_id), own.level, model=tuple(own.model), names=names, mode=mode, gone=gone)
    )


@lru_cache(maxsize=256)
def _known(
    id_size: int,
    level: bytes,
    model: tuple[Header, ...],
    names: tuple[bytes, ...],
    mode: BodyMode | None,
    gone: tuple[str, ...],
) -> list[bytes]:
    """The message for headers with these names, between the places of the request's id."""
    blank = blank_id(id_size)
    changes = HeaderChanges(_ours(blank, level, model), _removed(names, gone))
    return wire.response_head(changes, mode).split(blank)


def _ours(request_id: bytes, level: bytes, model: Sequence[Header]) -> list[Header]:
    return [(b"x-request-id", request_id), (b"x-pointsman-level", level), *model]


def _removed(names: tuple[bytes, ...], gone: tuple[str, ...]) -> list[str]:
    return [*(name.decode("ascii", "replace") for name in sorted({*names}) if internal(name)), *gone]
