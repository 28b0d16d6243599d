"""The request to an engine: the endpoints of a decision for Envoy, and the changes of headers and body."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final

from pointsman_apis.paths import Route
from pointsman_contracts.reply import Decision
from pointsman_edge.deciding.static_choice import NoEndpoints, outside_subset
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.answer_fields import SHORTEST_ID, blank_id
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.stream import WholeBody
from pointsman_epp_adapter.domain.destination import DESTINATION, Destination, destinations, within
from pointsman_epp_adapter.domain.envoy_events import RequestHead
from pointsman_epp_adapter.domain.mutation import Header, HeaderChanges, edited, stripped
from pointsman_epp_adapter.domain.protocol_headers import worker_headers
from pointsman_runtime.telling.logs import Log

_NAME: Final = itemgetter(0)

_log = Log("exchange")


def chosen(envoy: EnvoyEdge, record: RequestRecord, decision: Decision, head: RequestHead) -> list[Destination]:
    """The endpoints that Envoy can be sent to, in order; at least one. A provider has no address.

    Raises NoEndpoints.
    """
    if decision.target.provider is not None:
        return [Destination(decision.target.provider, "")]
    found = destinations(decision.endpoints)
    if not found:
        _log.warning("not_routable", request_id=record.request_id, hint="Envoy takes http://<ip>:<port>")
        raise NoEndpoints("The engine that was chosen can't be reached this way.", "endpoint_not_routable")
    # The scheduler's filter `subset` sees to it, and this edge where it decides alone; a policy without it doesn't.
    found = within(found, head.subset)
    if not found:
        raise outside_subset()
    return found[:1] if envoy.settings.dynamo_headers else found


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
) -> Iterable[bytes]:
    """The messages that tell Envoy where to send the request, and how to change its headers. `body` is for the engine:
    the client's own object if nothing in it changes."""
    sent, kept = tuple(map(_NAME, head.headers)), tuple(map(_NAME, headers.engine))
    path = requested.path.encode("ascii")
    request_id = record.request_id.encode("ascii")
    if (
        body is whole.data
        and whole.buffered
        and not decision.headers
        and record.traceparent is None
        and not envoy.settings.dynamo_headers
        and (b":path", path) in head.headers
        and len(request_id) >= SHORTEST_ID
    ):
        return (request_id.join(_known(len(request_id), tuple(found), decision.level, sent, kept)),)
    edits = edited(decision.headers, frozenset(sent), envoy.edge.metrics.drop_header_edit)
    ours = [*edits.set, *_named(request_id, found[0])]
    if record.traceparent is not None:
        ours.append((b"traceparent", record.traceparent.encode("ascii")))
    if envoy.settings.dynamo_headers:
        ours += worker_headers(found[0].worker, edits.set, envoy.worker_at)
    sent_path, _, query = dict(head.headers).get(b":path", b"").partition(b"?")
    if sent_path != path:
        ours.append((b":path", path + b"?" + query if query else path))
    removed = _removed({*edits.remove, *stripped(sent, kept)}, ours)
    ours += _routed(found)
    if not head.end and (body is not whole.data or not whole.buffered):
        ours.append((b"content-length", b"%d" % len(body)))
    return wire.decided(
        HeaderChanges(ours, removed),
        _addresses(found),
        _stamps(decision.level, record.request_id, found[0]),
        buffered_body=whole.buffered,
        body=None if head.end or (whole.buffered and body is whole.data) else body,
        duplex=not (head.end or whole.buffered),
        trailers=whole.trailers,
    )


@lru_cache(maxsize=256)
def _known(
    id_size: int, found: tuple[Destination, ...], level: str, sent: tuple[bytes, ...], kept: tuple[bytes, ...]
) -> list[bytes]:
    """The message of a request whose body and path stay, between the places of its id. `sent` and `kept` are the names
    of the client's headers and of those among them that the engine gets."""
    blank = blank_id(id_size)
    ours = _named(blank, found[0])
    removed = _removed(stripped(sent, kept), ours)
    stamps = _stamps(level, blank.decode("ascii"), found[0])
    changes = HeaderChanges([*ours, *_routed(found)], removed)
    (message,) = wire.decided(changes, _addresses(found), stamps, buffered_body=True)
    return message.split(blank)


def _named(request_id: bytes, first: Destination) -> list[Header]:
    return [(b"x-request-id", request_id), (b"x-gateway-worker-id", first.worker.encode("ascii", "replace"))]


def _routed(found: Sequence[Destination]) -> list[Header]:
    return [
        (DESTINATION.encode(), _addresses(found).encode()),
        # After the last endpoint, Envoy would retry at engines that weren't chosen.
        (b"x-envoy-max-retries", b"%d" % (len(found) - 1)),
    ]


def _removed(names: Iterable[str], ours: Iterable[Header]) -> list[str]:
    return sorted(set(names) - {name.decode("ascii") for name, _ in ours} - {DESTINATION})


def _stamps(level: str, request_id: str, first: Destination) -> dict[str, str]:
    return {"level": level, "request_id": request_id, "worker": first.worker}


def _addresses(found: Sequence[Destination]) -> str:
    return ",".join([each.address for each in found])
