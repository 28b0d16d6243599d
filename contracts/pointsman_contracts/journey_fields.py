"""All fields of the messages and parts that every request makes, in their order, for `set_fields`.

A message made so costs a fraction of its constructor's time, and pyright still checks each field.
"""

from typing import TypedDict

from pydantic import JsonValue

from pointsman_contracts.journey import BlockChain, BodyEdit, HeaderEdit, RequestFacts, Stage, StageReport, Target


class RequestFields(TypedDict):
    """Of `PreprocessRequest`."""

    request_id: str
    edge: str
    attempt: int
    received_ms: int
    deadline_ms: int
    revision: int
    method: str
    path: str
    model: str | None
    headers: dict[str, str]
    client: str
    body_bytes: int | None


class FactsFields(TypedDict):
    """Of `RequestFacts`."""

    api: str
    path: str
    stream: bool
    body_bytes: int
    prompt_tokens: int
    tokens_exact: bool
    max_output_tokens: int | None
    answers: int
    block_tokens: int
    blocks: bytes
    blocks_precise: bool
    other_chains: tuple[BlockChain, ...]
    fingerprint: bytes
    features: tuple[str, ...]
    headers: dict[str, str]
    fields: dict[str, JsonValue]
    attributes: dict[str, JsonValue]
    session: str | None
    priority: int
    fairness_id: str
    slo_ttft_ms: float | None
    slo_itl_ms: float | None
    subset: tuple[str, ...] | None
    workers: tuple[str, ...] | None


class ReportFields(TypedDict):
    """Of `StageReport`."""

    stage: str
    instance: str
    outcome: str
    took_ms: float
    note: str | None


class JourneyFields(TypedDict):
    """Of `Journey`."""

    request_id: str
    edge: str
    attempt: int
    received_ms: int
    deadline_ms: int
    revision: int
    request: RequestFacts
    model: str
    rewritten: str | None
    target: Target | None
    alternatives: tuple[Target, ...]
    profile: str | None
    itinerary: tuple[Stage, ...]
    response: tuple[Stage, ...]
    headers: tuple[HeaderEdit, ...]
    body: tuple[BodyEdit, ...]
    answer_headers: tuple[HeaderEdit, ...]
    level: str
    reasons: tuple[str, ...]
    trail: tuple[StageReport, ...]
