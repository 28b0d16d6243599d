"""Only whole answers without errors are kept."""

import json

import pytest

from pointsman_apis import named
from pointsman_contracts.journey import StageReport
from pointsman_contracts.message import read_fields
from pointsman_contracts.response_stage import ResponseReview
from pointsman_core.config import Cache
from pointsman_semantic_cache.domain.kept_answers import refusal, unworthy

CHAT = "chat.completions"


def whole(**choice: object) -> bytes:
    said = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"} | choice
    return json.dumps({"object": "chat.completion", "choices": [said]}).encode()


def events(*documents: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(document)}\n\n" for document in documents]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


def delta(end: str | None = None, **said: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": end}]}


SECOND_CUT: dict[str, object] = {"choices": [{"index": 1, "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("api", "body", "stream", "reason"),
    [
        (CHAT, whole(), False, None),
        (CHAT, whole(finish_reason="length"), False, "ended by length"),
        (CHAT, whole(finish_reason="content_filter"), False, "ended by content_filter"),
        (CHAT, whole(finish_reason="tool_calls"), False, "tool calls"),
        (CHAT, whole(finish_reason=None), False, "incomplete"),
        (CHAT, b'{"error":{"message":"no"}}', False, "error"),
        (CHAT, b"oops", False, "not JSON"),
        (CHAT, events(delta(content="hi"), delta("stop")), True, None),
        (CHAT, events(delta(content="hi"), delta("stop")).replace(b"\n", b"\r\n"), True, None),
        (CHAT, events(delta(content="hi"), delta("stop"), done=False), True, "incomplete"),
        (CHAT, events(delta(content="hi")), True, "incomplete"),
        (CHAT, events(delta(content="hi"), {"error": {"message": "cut"}}, done=False), True, "error"),
        (CHAT, events(delta("stop"), SECOND_CUT), True,
         "ended by length"),
        ("completions", b'{"choices":[{"text":"hi","finish_reason":"stop"}]}', False, None),
        ("messages", b'{"type":"message","stop_reason":"end_turn","content":[]}', False, None),
        ("messages", b'{"type":"message","stop_reason":"max_tokens","content":[]}', False, "ended by max_tokens"),
        ("messages", b'{"type":"message","stop_reason":"tool_use","content":[]}', False, "tool calls"),
        ("messages", b'{"type":"error","error":{"type":"x"}}', False, "error"),
        ("messages", events({"type": "message_start", "message": {"stop_reason": None}},
                            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"},
                            done=False), True, None),
        ("responses", b'{"object":"response","status":"completed","output":[]}', False, None),
        ("responses", b'{"object":"response","status":"incomplete","output":[]}', False, "ended by incomplete"),
        ("responses", b'{"object":"response","status":"completed","output":[{"type":"function_call"}]}', False,
         "tool calls"),
        ("responses", events({"type": "response.created", "response": {"status": "in_progress"}},
                             {"type": "response.completed", "response": {"status": "completed", "output": []}},
                             done=False), True, None),
        ("responses", events({"type": "response.created", "response": {"status": "in_progress"}}, done=False), True,
         "incomplete"),
        ("embeddings", b'{"data":[{"embedding":[0.1]}]}', False, None),
        ("embeddings", b'{"data":[]}', False, "incomplete"),
    ],
)  # fmt: skip
def test_an_answer_is_kept_when_it_is_whole(api: str, body: bytes, stream: bool, reason: str | None) -> None:
    assert unworthy(named(api), body, stream=stream, tool_calls=False) == reason


def test_answers_that_call_tools_are_kept_where_that_is_wanted() -> None:
    assert unworthy(named(CHAT), whole(finish_reason="tool_calls"), stream=False, tool_calls=True) is None


def test_answers_that_a_limit_cut_short_are_kept_where_that_is_wanted() -> None:
    assert unworthy(named(CHAT), whole(finish_reason="length"), stream=False, tool_calls=False, cut_short=True) is None
    filtered = whole(finish_reason="content_filter")
    assert unworthy(named(CHAT), filtered, stream=False, tool_calls=False, cut_short=True) == "ended by content_filter"


def review(**fields: object) -> ResponseReview:
    known = {
        "request_id": "r", "edge": "e", "stage": "semantic-cache", "revision": 1, "deadline_ms": 0, "mode": "after",
        "api": CHAT, "status": 200, "outcome": "ok", "body": whole(),
    }  # fmt: skip
    return read_fields(ResponseReview, known | fields)


def guard(outcome: str) -> tuple[StageReport, ...]:
    return (StageReport(stage="guard", instance="g", outcome=outcome),)


@pytest.mark.requirement("CACHE-3")
@pytest.mark.parametrize(
    ("fields", "guarded", "reason"),
    [
        ({}, False, None),
        ({"stages": guard("passed")}, True, None),
        ({}, True, "guard"),
        ({"stages": guard("replaced")}, True, "guard"),
        ({"stages": guard("blocked")}, True, "guard"),
        ({"stages": guard("failed")}, True, "guard"),
        ({"stages": guard("skipped")}, True, "guard"),
        ({"stages": guard("passed") + guard("blocked")}, True, "guard"),
        ({"stages": guard("blocked")}, False, "guard"),
        ({"stages": guard("replaced")}, False, "guard"),
        # In shadow alone.
        ({"stages": guard("failed")}, False, None),
        ({"status": 500}, False, "error"),
        ({"outcome": "blocked"}, False, "error"),
        ({"outcome": "cut_off"}, False, "error"),
        ({"outcome": "client_gone"}, False, "error"),
        ({"truncated": True}, False, "no body"),
        ({"body": None}, False, "no body"),
        ({"body": whole(message={"content": "x" * 1000})}, False, "too large"),
    ],
)
def test_a_risky_answer_never_enters(fields: dict[str, object], guarded: bool, reason: str | None) -> None:
    assert refusal(review(**fields), Cache(max_answer=500), guarded=guarded) == reason
