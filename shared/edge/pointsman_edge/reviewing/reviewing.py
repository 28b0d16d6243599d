"""What a stage on the way back is asked."""

from typing import NamedTuple

from pointsman_contracts.journey import AnswerUse, Stage, StageReport
from pointsman_contracts.response import Usage
from pointsman_contracts.response_stage import AnswerText, ResponseReview
from pointsman_edge.telling.exchange import Exchange


class Surrounding(NamedTuple):
    """What is known of a request beside its exchange."""

    edge: str
    revision: int
    traceparent: str | None


class Shown(NamedTuple):
    """What of an answer a stage gets to see, as `ResponseReview` says it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    texts: tuple[AnswerText, ...]
    body: bytes | None
    number: int
    last: bool
    outcome: str
    code: str | None = None
    """Of an error of the gateway's own."""
    truncated: bool = False
    usage: Usage | None = None
    stages: tuple[StageReport, ...] = ()


def review_of(
    exchange: Exchange, surrounding: Surrounding, stage: Stage, shown: Shown, deadline_ms: int
) -> ResponseReview:
    """The question."""
    source = exchange.reply
    return ResponseReview(
        request_id=exchange.request_id,
        edge=surrounding.edge,
        stage=stage.service,
        policy=stage.policy,
        revision=surrounding.revision,
        deadline_ms=deadline_ms,
        mode=(stage.answer or AnswerUse()).mode,
        number=shown.number,
        last=shown.last,
        api=exchange.api,
        stream=exchange.stream,
        status=shown.status,
        outcome=shown.outcome,
        code=shown.code,
        profile=(source.profile or None) if source is not None else None,
        plan=source.identity.plan if source is not None and source.identity is not None else "",
        model=exchange.model,
        target=source.target if source is not None else None,
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in shown.headers},
        texts=shown.texts,
        body=shown.body,
        truncated=shown.truncated,
        usage=shown.usage,
        stages=shown.stages,
        memo=stage.memo,
    )
