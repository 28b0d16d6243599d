"""Answers that no engine gives: the route alone (`x-routing-request: true`, S1-23), and an answer of a stage."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.reply import Answer, Decision
from pointsman_edge.sending.engine_tokens import token_ids
from pointsman_edge.sending.header_edits import folded
from pointsman_edge.sending.model_name import renaming
from pointsman_edge.taking_in.request_headers import DESTINATION

Header = tuple[bytes, bytes]

OUTCOME: Final = "routed"
"""`ResponseCompleted.outcome` of such a request: its reservation ends, nothing was generated."""


class Place(NamedTuple):
    """An endpoint that the request may be sent to."""

    worker: str
    address: str
    """The address that this edge would use; empty for a provider."""


def routing_answer(
    decision: Decision, places: Sequence[Place], tokens: PromptTokens | None
) -> tuple[list[Header], bytes]:
    """Headers and body: the worker, its address and the fallbacks in order, the headers that the engine is to get and,
    when they were counted, the prompt's tokens."""
    first = places[0]
    document: dict[str, object] = {
        "object": "routing",
        "worker_id": first.worker,
        "endpoint": first.address,
        "endpoints": [{"worker_id": each.worker, "endpoint": each.address} for each in places],
        "model": decision.target.model,
        "pool": decision.target.pool,
        "provider": decision.target.provider,
        "level": decision.level,
        "headers": {
            name.decode("ascii"): value.decode()
            for name, value in folded(decision.headers).items()
            if value is not None
        },
    }
    if tokens is not None:
        document["token_ids"] = token_ids(tokens)
    headers = [
        (b"content-type", b"application/json"),
        (b"x-gateway-worker-id", first.worker.encode("ascii", "replace")),
        (DESTINATION, first.address.encode("ascii", "replace")),
    ]
    return headers, orjson.dumps(document)


_ERROR: Final = 400


def answer_headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    """The answer's headers, before the edits of stages."""
    return [
        (b"content-type", answer.content_type.encode("ascii", "replace")),
        (b"x-pointsman-level", answer.level.encode("ascii", "replace")),
    ]


def answer_body(answer: Answer) -> bytes:
    """The answer's body, with the model's name that the client asked for."""
    name = renaming(answer.named, answer.model) if answer.named and answer.model else None
    if name is None:
        return answer.body
    return name.rewrite_bytes(answer.body) if answer.status < _ERROR else name.put_in_error(answer.body)
