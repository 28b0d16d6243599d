"""Sends requests to engines: the endpoints of a decision as Envoy is told them, and what changes in the request."""

from collections.abc import Iterator

from pointsman_contracts.reply import Decision
from pointsman_edge.deciding.static_choice import NoEndpoints, outside_subset
from pointsman_edge.taking_in.request_headers import ClientHeaders
from pointsman_edge.telling.exchange import Exchange
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.desk import Desk
from pointsman_epp_adapter.adapters.stream import WholeBody
from pointsman_epp_adapter.domain.destination import DESTINATION, Destination, destinations, within
from pointsman_epp_adapter.domain.dynamo import worker_headers
from pointsman_epp_adapter.domain.envoy_events import RequestHead
from pointsman_epp_adapter.domain.mutation import HeaderChanges, edited, stripped
from pointsman_runtime.telling.logs import Log

_log = Log("exchange")


def chosen(desk: Desk, exchange: Exchange, decision: Decision, head: RequestHead) -> list[Destination]:
    """The endpoints that Envoy can be sent to, in order; at least one. A provider has no address.

    Raises NoEndpoints.
    """
    if decision.target.provider is not None:
        return [Destination(decision.target.provider, "")]
    found = destinations(decision.endpoints)
    if not found:
        _log.warning("not_routable", request_id=exchange.request_id, hint="Envoy takes http://<ip>:<port>")
        raise NoEndpoints("The engine that was chosen can't be reached this way.", "endpoint_not_routable")
    # The scheduler's filter `subset` sees to it, and this edge where it decides alone; a policy without it doesn't.
    found = within(found, head.subset)
    if not found:
        raise outside_subset()
    return found[:1] if desk.settings.dynamo_headers else found


def changes(
    desk: Desk,
    exchange: Exchange,
    decision: Decision,
    found: list[Destination],
    head: RequestHead,
    headers: ClientHeaders,
    traceparent: str | None,
) -> HeaderChanges:
    """What changes in the request's headers, but for where it goes."""
    sent = {name for name, _ in head.headers}
    decided = edited(decision.headers, sent, desk.metrics.drop_header_edit)
    removed = {*decided.remove, *stripped(head.headers, headers.engine)}
    all_set = [
        *decided.set,
        (b"x-request-id", exchange.request_id.encode("ascii")),
        (b"x-gateway-worker-id", found[0].worker.encode("ascii", "replace")),
    ]
    if traceparent is not None:
        all_set.append((b"traceparent", traceparent.encode("ascii")))
    if desk.settings.dynamo_headers:
        all_set += worker_headers(found[0].worker, decided.set, desk.worker_at)
    names = {name.decode("ascii") for name, _ in all_set} | {DESTINATION}
    return HeaderChanges(all_set, sorted(removed - names))


def messages(
    exchange: Exchange,
    decision: Decision,
    found: list[Destination],
    others: HeaderChanges,
    whole: WholeBody,
    body: bytes,
) -> Iterator[bytes]:
    """What tells Envoy where the request goes, with `others` of its headers changed too. `body` is what the engine
    gets: the client's own object where nothing in it changes."""
    addresses = ",".join([each.address for each in found])
    others.set.append((DESTINATION.encode(), addresses.encode()))
    # Past the list, Envoy would go on to engines that nobody chose.
    others.set.append((b"x-envoy-max-retries", b"%d" % (len(found) - 1)))
    if body is not whole.data or not whole.buffered:
        others.set.append((b"content-length", b"%d" % len(body)))
    return wire.decided(
        others,
        addresses,
        {"level": decision.level, "request_id": exchange.request_id, "worker": found[0].worker},
        buffered_body=whole.buffered,
        body=None if whole.buffered and body is whole.data else body,
        duplex=not whole.buffered,
        trailers=whole.trailers,
    )
