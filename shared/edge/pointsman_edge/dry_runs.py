"""Answers the question where a request would go: it passes the stages as any other, and nothing follows from it."""

import time
import uuid
from typing import Final

from msgspec.structs import replace

from pointsman_apis.chat import CHAT
from pointsman_apis.paths import Route, route_of
from pointsman_contracts.journey import PreprocessRequest
from pointsman_contracts.message import Message
from pointsman_contracts.reply import Decision, Rejection
from pointsman_contracts.scheduling import DryRunForecast, RequestScheduled
from pointsman_contracts.story import DryRunQuery, KeptEvent, Story
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import StagesMissing, refusal_of
from pointsman_edge.deciding.policy import EdgePolicy
from pointsman_edge.edge import Edge
from pointsman_edge.taking_in.bodies import check_content, check_length, check_presence
from pointsman_edge.telling.event_publisher import describe_answer, describe_rejection
from pointsman_edge.telling.request_record import RequestRecord

_PRICED_TOKENS: Final = 1000


async def answer_dry_run(edge: Edge, query: DryRunQuery) -> Story:
    """The event of the decision, the rejection or the answer that the request would get. It isn't published."""
    event = await _decided(edge, query)
    kept = KeptEvent(type=event.address.type_id, body=event.encode().decode())
    return Story(recorder=edge.instance, events=(kept,))


async def _decided(edge: Edge, query: DryRunQuery) -> Message:
    policy, body = edge.policy(), bytes(query.body)
    route = route_of(query.path)
    # No client's id can be the same: `edge.bodies` has one body for each.
    request_id = f"dry-run-{uuid.uuid4()}"
    record = RequestRecord(request_id, CHAT if route is None else route.api, policy, time.monotonic())
    held = None
    try:
        request = _taken_in(edge, query, route, request_id, policy)
        held = edge.bodies.hold_body(request_id, body)
        reply = await edge.decider.ask(request, policy, body)
        if isinstance(reply, Decision):
            return _priced(reply, policy)
        if isinstance(reply, Rejection):
            record.rejected_by(reply, time.monotonic())
            raise refusal_of(reply)
        return describe_answer(record, reply, edge.instance)
    except StagesMissing as missing:
        words = f"The stages can't decide ({missing}). Meanwhile the edge would choose an engine alone, where it may."
        return describe_rejection(record, Refusal(503, words, code="stages_missing"), edge.instance)
    except Refusal as refusal:
        return describe_rejection(record, refusal, edge.instance)
    finally:
        if held is not None:
            edge.bodies.let_go(held)


def _taken_in(
    edge: Edge, query: DryRunQuery, route: Route | None, request_id: str, policy: EdgePolicy
) -> PreprocessRequest:
    """The request as the stages get it. Raises Refusal as for a client's."""
    if route is None:
        raise Refusal(404, f"The gateway has no API at {query.path[:200]!r}.", code="unknown_path")
    sent = [(name.lower().encode(), value.encode()) for name, value in query.headers]
    if not any(name == b"content-type" for name, _ in sent):
        sent.append((b"content-type", b"application/json"))
    headers = edge.headers.read(sent, trusted=True)
    check_content(headers, route.api.body)
    check_presence(query.body, route.api.body)
    check_length(len(query.body), policy.limits.max_body)
    now_ms = time.time_ns() // 1_000_000
    return PreprocessRequest(
        request_id=request_id,
        edge=edge.instance,
        received_ms=now_ms,
        deadline_ms=now_ms + round(policy.limits.decision_timeout * 1000),
        revision=policy.revision,
        method="POST",
        path=route.path if route.pool is None else route.asked_path,
        model=route.model,
        headers=headers.stages,
        dry_run=True,
    )


def _priced(decision: Decision, policy: EdgePolicy) -> RequestScheduled:
    """The decision's event, with the price of the model. Raises Refusal where there is none."""
    event = decision.explained
    if event is None:
        raise Refusal(501, "The service that decided is of an earlier version, which has no dry runs.")
    prices = policy.prices
    price = prices.of.get(prices.find_name(event.target, event.model))
    if price is None:
        return event
    forecast = replace(
        event.dry_run or DryRunForecast(),
        prompt_nanos=price.cost_of_texts(event.prompt_tokens, 0),
        answer_nanos=price.cost_of_texts(0, _PRICED_TOKENS),
    )
    return replace(event, dry_run=forecast)
