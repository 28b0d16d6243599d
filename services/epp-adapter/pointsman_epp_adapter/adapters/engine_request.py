"""The request to an engine: the endpoints of a decision for Envoy, and the changes of headers and body."""

from collections.abc import Iterator

from pointsman_apis.paths import Route
from pointsman_contracts.reply import Decision
from pointsman_edge.deciding.static_choice import NoEndpoints, outside_subset
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.envoy_edge import EnvoyEdge
from pointsman_epp_adapter.adapters.stream import WholeBody
from pointsman_epp_adapter.domain.destination import DESTINATION, Destination, destinations, within
from pointsman_epp_adapter.domain.envoy_events import RequestHead
from pointsman_epp_adapter.domain.mutation import HeaderChanges, edited, stripped
from pointsman_epp_adapter.domain.protocol_headers import worker_headers
from pointsman_runtime.telling.logs import Log

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


def changes(
    envoy: EnvoyEdge,
    record: RequestRecord,
    decision: Decision,
    found: list[Destination],
    head: RequestHead,
    headers: ClientHeaders,
    requested: Route,
) -> HeaderChanges:
    """The changes of the request's headers, except its destination."""
    sent = {name for name, _ in head.headers}
    decided = edited(decision.headers, sent, envoy.edge.metrics.drop_header_edit)
    removed = {*decided.remove, *stripped(head.headers, headers.engine)}
    all_set = [
        *decided.set,
        (b"x-request-id", record.request_id.encode("ascii")),
        (b"x-gateway-worker-id", found[0].worker.encode("ascii", "replace")),
    ]
    if record.traceparent is not None:
        all_set.append((b"traceparent", record.traceparent.encode("ascii")))
    if envoy.settings.dynamo_headers:
        all_set += worker_headers(found[0].worker, decided.set, envoy.worker_at)
    sent_path, _, query = dict(head.headers).get(b":path", b"").partition(b"?")
    path = requested.path.encode("ascii")
    if sent_path != path:
        all_set.append((b":path", path + b"?" + query if query else path))
    names = {name.decode("ascii") for name, _ in all_set} | {DESTINATION}
    return HeaderChanges(all_set, sorted(removed - names))


def messages(
    record: RequestRecord,
    decision: Decision,
    found: list[Destination],
    others: HeaderChanges,
    whole: WholeBody,
    body: bytes,
    *,
    bodyless: bool,
) -> Iterator[bytes]:
    """The messages that tell Envoy where to send the request, with the changes `others` of its headers. `body` is for
    the engine: the client's own object if nothing in it changes. `bodyless`: the request ended with its headers."""
    addresses = ",".join([each.address for each in found])
    others.set.append((DESTINATION.encode(), addresses.encode()))
    # After the last endpoint, Envoy would retry at engines that weren't chosen.
    others.set.append((b"x-envoy-max-retries", b"%d" % (len(found) - 1)))
    if not bodyless and (body is not whole.data or not whole.buffered):
        others.set.append((b"content-length", b"%d" % len(body)))
    return wire.decided(
        others,
        addresses,
        {"level": decision.level, "request_id": record.request_id, "worker": found[0].worker},
        buffered_body=whole.buffered,
        body=None if bodyless or (whole.buffered and body is whole.data) else body,
        duplex=not (bodyless or whole.buffered),
        trailers=whole.trailers,
    )
