"""Writes a request for one endpoint."""

from collections.abc import Sequence

from pointsman_apis.passthrough import OF_A_MODEL
from pointsman_apis.token_ids import with_token_ids
from pointsman_contracts.journey import BodyEdit, retold
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_edge.sending.engine_tokens import token_edits
from pointsman_edge.sending.header_edits import edited_headers
from pointsman_edge.sending.model_in_path import renamed_path, without_model
from pointsman_edge.sending.rank import RANK_HEADER, rank_edits, rank_header
from pointsman_edge.taking_in.bodies import edited_body
from pointsman_edge.taking_in.request_headers import OF_ONE_POOL
from pointsman_frontend.adapters.engine_client import Call, origin_of
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.outgoing import Outgoing
from pointsman_frontend.domain.heads import request_head


def engine_call(
    request: Outgoing, endpoint: ChosenEndpoint, traceparent: str | None, more: Sequence[BodyEdit], *, movable: bool
) -> Call:
    """The call. `more`: changes of the body after the decision's; `movable` as `Call.movable`. Raises EndpointFailed
    for a URL that leads nowhere."""
    decision, record, headers, other = request.decision, request.record, request.headers, endpoint.target
    if endpoint.rank is not None:
        more = (*more, *rank_edits(endpoint))
    edits, held, target = decision.body, record.held, request.target
    named_in_body = True
    if record.api.path.startswith(OF_A_MODEL):
        named_in_body, edits = False, without_model(edits)
        target = renamed_path(target, (other or decision.target).model)
    body = b"" if held is None else held.current
    if other is not None:
        retold_headers = edited_headers(headers, retold(decision.headers, other))
        headers = [header for header in retold_headers if header[0] not in OF_ONE_POOL]
        body = edited_body(body, (*edits, *more), other.model if named_in_body else None)
    else:
        if held is not None and held.tokens is not None:
            edits = token_edits(
                config=record.policy.config,
                target=decision.target,
                api=record.api,
                body=body,
                edits=edits,
                tokens=held.tokens,
            )
        if more:
            edits = (*edits, *more)
        if edits:
            body = edited_body(body, edits, None)
        if request.resuming is not None and request.resuming.asks_ids:
            body = with_token_ids(body)
    return _call(
        request=request,
        endpoint=endpoint,
        method=request.method.encode("ascii"),
        target=target,
        headers=headers,
        body=body,
        traceparent=traceparent,
        movable=movable,
    )


def rest_call(
    request: Outgoing, endpoint: ChosenEndpoint, traceparent: str | None, *, method: bytes, path: bytes, body: bytes
) -> Call:
    """The call by which an engine continues a stream, or says something about itself."""
    return _call(
        request=request,
        endpoint=endpoint,
        method=method,
        target=path,
        headers=request.headers,
        body=body,
        traceparent=traceparent,
        movable=False,
    )


def _call(
    *,
    request: Outgoing,
    endpoint: ChosenEndpoint,
    method: bytes,
    target: bytes,
    headers: Headers,
    body: bytes,
    traceparent: str | None,
    movable: bool,
) -> Call:
    record = request.record
    origin = origin_of(endpoint.url)
    if endpoint.rank is not None:
        headers = [*(header for header in headers if header[0] != RANK_HEADER), *rank_header(endpoint)]
    head = request_head(
        method=method,
        target=origin.path + target,
        host=origin.host_header,
        length=len(body),
        headers=headers,
        request_id=record.request_id,
        traceparent=traceparent,
    )
    tls = None
    if origin.tls:
        pool = record.policy.config.pools.get((endpoint.target or request.decision.target).pool or "")
        tls = None if pool is None else pool.tls
    return Call(
        request_id=record.request_id,
        worker=endpoint.worker,
        url=endpoint.url,
        head=head,
        body=body,
        tls=tls,
        movable=movable,
    )
