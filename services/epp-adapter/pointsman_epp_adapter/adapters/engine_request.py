"""The request to an engine: the endpoints of a decision for Envoy, and the changes of headers and body."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from http import HTTPStatus
from itertools import chain
from operator import itemgetter
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.paths import Route
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_edge.deciding.static_choice import NoEndpoints, outside_subset
from pointsman_edge.sending.model_in_path import renamed_path
from pointsman_edge.sending.model_name import renaming
from pointsman_edge.sending.moving_on import failure_of
from pointsman_edge.sending.rank import rank_header
from pointsman_edge.sending.unasked_usage import without_unasked_usage
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.answer_fields import ALL_DUPLEX, SHORTEST_ID, blank_id
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.stream import Stream, WholeBody
from pointsman_epp_adapter.domain.destination import DESTINATION, SCORES, Destination, destinations, within
from pointsman_epp_adapter.domain.envoy_events import BodyMode, RequestHead
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, edited, stripped
from pointsman_epp_adapter.domain.protocol_headers import worker_headers
from pointsman_runtime.telling.logs import Log

_NAME: Final = itemgetter(0)
_DESTINATION: Final = DESTINATION.encode()
_BROKEN: Final = b"connect-failure,refused-stream,reset"
"""Why Envoy tries again: nothing of an answer has come. It adds these to its own configuration's."""
_HEDGE: Final = (b"x-envoy-hedge-on-per-try-timeout", b"true")
"""An endpoint that is silent for far longer than predicted keeps the request, but the next one gets it too; the first
answer is the client's. Not for streams: beside a bound of its first byte, Envoy forgets that of silence in a stream."""
_RETRIABLE: Final = b",".join(
    b"%d" % status for status in HTTPStatus if status < 500 and (status == 404 or failure_of(status) is not None)
)
"""Statuses below 500 by which it does so where there are several endpoints. Envoy can't read a 404, nor try these less
often than others."""

_STREAMS: Final = re.compile(rb'"stream"\s*:\s*true')
"""In a body that asks for a stream. A string of JSON has no quotation mark that isn't escaped."""

_log = Log("exchange")


def chosen(envoy: EnvoyEdge, record: RequestRecord, decision: Decision, head: RequestHead) -> list[Destination]:
    """The endpoints that Envoy can be sent to, in order; at least one. A provider has no address.

    Raises NoEndpoints.
    """
    if decision.target.provider is not None:
        return [Destination(decision.target.provider, "")]
    found = destinations(decision.endpoints)
    if not found:
        _log.warning(
            "not_routable", request_id=record.request_id, hint="Envoy reaches only engines at http(s)://<ip>:<port>"
        )
        raise NoEndpoints("The chosen engine can't be reached through this proxy.", "endpoint_not_routable")
    # The scheduler's filter `subset` sees to it, and this edge where it decides alone; a policy without it doesn't.
    found = within(found, head.subset)
    if not found:
        raise outside_subset()
    return found[:1] if envoy.settings.dynamo_headers else found


def endpoint_at(decision: Decision, destination: Destination) -> ChosenEndpoint:
    """The decision's endpoint that Envoy is sent to there."""
    return next(each for each in decision.endpoints if each.worker == destination.worker)


def rewritten(decision: Decision, asked: str) -> bool:
    """Whether a stream has something that the client, who `asked` for this model, must not see."""
    name = renaming(decision.target.model, asked)
    return name is not None or without_unasked_usage(decision.body, None) is not None


def answer_mode(stream: Stream, head: RequestHead, whole: WholeBody, body: bytes, api: Api, *, seen: bool) -> BodyMode:
    """How Envoy sends the answer to `body`. Headers and body come at once, in full duplex, where Envoy lets the adapter
    choose: those of a document, and those of a stream that this edge has to see (`seen`). Any other stream would cost
    CPU time for every piece of it, and so would a long list of embeddings."""
    mode = head.response_mode
    read = api.generates and not api.passed and (seen or _STREAMS.search(body) is None)
    if stream.heeds_modes and read and not (whole.buffered or head.end) and mode is BodyMode.STREAMED:
        return BodyMode.FULL_DUPLEX_STREAMED
    return mode


def messages(
    envoy: EnvoyEdge,
    record: RequestRecord,
    decision: Decision,
    found: list[Destination],
    head: RequestHead,
    headers: ClientHeaders,
    requested: Route,
    whole: WholeBody,
    body: bytes,
    mode: BodyMode,
) -> Iterable[bytes]:
    """The messages that tell Envoy where to send the request, and how to change its headers. `body` is for the engine:
    the client's own object if nothing in it changes. `mode`: how Envoy is to send the answer, as `answer_mode`."""
    names, kept = head.header_names, tuple(map(_NAME, headers.engine))
    own, removed = _own(
        envoy=envoy, record=record, decision=decision, found=found, head=head, requested=requested, body=whole.data
    )
    own_names = tuple(map(_NAME, own))
    new = None if head.end or (whole.buffered and body is whole.data) else body
    if new is not None:
        own.append((b"content-length", b"%d" % len(new)))
    request_id, there, level, buffered = record.request_id.encode("ascii"), tuple(found), decision.level, whole.buffered
    size = len(request_id)
    message = (
        request_id.join(
            _known(id_size=size, found=there, level=level, sent=names, kept=kept, own=own_names, buffered=buffered)
        )
        if size >= SHORTEST_ID
        else _message(
            request_id=request_id, found=there, level=level, sent=names, kept=kept, own=own_names, buffered=buffered
        )
    )
    if mode is not head.response_mode:
        message += ALL_DUPLEX
    scores = next((edit.value for edit in decision.headers if edit.name == SCORES), None)
    if scores is not None:
        message += wire.scored(_addresses(found), scores)
    if own or removed:
        further = HeaderChanges(own, removed)
        message += wire.further(further, buffered_body=buffered, body=new if buffered else None)
    if new is None or buffered:
        return (message,)
    return chain((message,), wire.streamed(new, of_request=True, end=not whole.trailers))


def _own(
    envoy: EnvoyEdge,
    record: RequestRecord,
    decision: Decision,
    found: Sequence[Destination],
    head: RequestHead,
    requested: Route,
    *,
    body: bytes,
) -> tuple[list[Header], list[str]]:
    """The changes that few requests have or whose values are a request's own: headers to set, and to remove."""
    first, several = found[0], len(found) > 1
    own: list[Header] = []
    removed: list[str] = []
    edits = [edit for edit in decision.headers if edit.name not in (DESTINATION, SCORES)]
    if edits:
        changes = edited(edits, frozenset(head.header_names), envoy.edge.metrics.drop_header_edit)
        own += [header for header in changes.set if header[0] != _DESTINATION]
        removed = changes.remove
    if first.rank is not None:
        own += rank_header(endpoint_at(decision, first))
    within_ms = decision.first_byte_within_ms
    if within_ms is not None and several and _STREAMS.search(body) is None:
        own += [(b"x-envoy-upstream-rq-per-try-timeout-ms", b"%d" % max(1, round(within_ms))), _HEDGE]
    dynamo = worker_headers(first.worker, own, envoy.worker_at) if envoy.settings.dynamo_headers else []
    if record.traceparent is not None:
        own.append((b"traceparent", record.traceparent.encode("ascii")))
    own += dynamo
    path = requested.path.encode("ascii")
    if requested.model is not None:
        path = renamed_path(path, decision.target.model)
    if (b":path", path) not in head.headers:
        sent_path, _, query = dict(head.headers).get(b":path", b"").partition(b"?")
        if sent_path != path:
            own.append((b":path", path + b"?" + query if query else path))
    return own, _removed(removed, [*_named(b"", first), *own]) if removed else removed


@lru_cache(maxsize=256)
def _known(
    id_size: int,
    found: tuple[Destination, ...],
    level: str,
    sent: tuple[bytes, ...],
    kept: tuple[bytes, ...],
    own: tuple[bytes, ...],
    *,
    buffered: bool,
) -> list[bytes]:
    """Like `_message`, between the places of the request's id."""
    blank = blank_id(id_size)
    return _message(request_id=blank, found=found, level=level, sent=sent, kept=kept, own=own, buffered=buffered).split(
        blank
    )


def _message(
    request_id: bytes,
    found: tuple[Destination, ...],
    level: str,
    sent: tuple[bytes, ...],
    kept: tuple[bytes, ...],
    own: tuple[bytes, ...],
    *,
    buffered: bool,
) -> bytes:
    """The message that all requests with headers of these names have in common. `sent`: the client's; `kept`: those of
    them that the engine gets; `own`: set by the request's own changes, so not removed."""
    ours = _named(request_id, found[0])
    removed = _removed(stripped(sent, kept), [*ours, *((name, b"") for name in own)])
    stamps = {"level": level, "request_id": request_id.decode("ascii"), "worker": found[0].worker}
    changes = HeaderChanges([*ours, *_routed(found)], removed)
    (message,) = wire.decided(changes, _addresses(found), stamps, buffered_body=buffered)
    return message


def _named(request_id: bytes, first: Destination) -> list[Header]:
    return [(b"x-request-id", request_id), (b"x-gateway-worker-id", first.worker.encode("ascii", "replace"))]


def _routed(found: Sequence[Destination]) -> list[Header]:
    several = len(found) > 1
    return [
        (_DESTINATION, _addresses(found).encode()),
        # After the last endpoint, Envoy would retry at engines that weren't chosen.
        (b"x-envoy-max-retries", b"%d" % (len(found) - 1 if several else 1)),
        (b"x-envoy-retry-on", _BROKEN + b",5xx,retriable-status-codes" if several else _BROKEN),
        *([(b"x-envoy-retriable-status-codes", _RETRIABLE)] if several else ()),
    ]


def _removed(names: Iterable[str], ours: Iterable[Header]) -> list[str]:
    return sorted(set(names) - {name.decode("ascii") for name, _ in ours} - {DESTINATION})


def _addresses(found: Sequence[Destination]) -> str:
    """The endpoints in order; a single one twice, for a connection that it closed while the request was sent."""
    return ",".join([each.address for each in (found if len(found) > 1 else (*found, *found))])
