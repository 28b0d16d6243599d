"""Errors in the words of each API."""

import json

import pytest

from pointsman_contracts.reply import STAGE_UNAVAILABLE, Rejection
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.rejected import refusal_of
from pointsman_edge.deciding.static_choice import Closed, NoEndpoints, outside_subset
from pointsman_edge.telling.error_body import error_body, error_event, error_headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_an_error_on_messages_has_the_type_that_anthropic_gives_its_status(status: int, kind: str) -> None:
    error = {"type": kind, "message": "why", "details": {"error_code": "it"}}
    assert json.loads(error_body(Refusal(status, "why", code="it"), "messages")) == {"type": "error", "error": error}


@pytest.mark.parametrize("api", ["chat.completions", "completions", "embeddings", "responses"])
def test_an_error_elsewhere_is_openais(api: str) -> None:
    refusal = Refusal(400, "why", code="it", param="messages")
    error = {"message": "why", "type": "invalid_request_error", "param": "messages", "code": "it"}
    assert json.loads(error_body(refusal, api)) == {"error": error}


@pytest.mark.parametrize("api", ["chat.completions", "completions", "responses", "messages"])
def test_a_stream_that_breaks_off_ends_with_one_event_that_its_clients_raise(api: str) -> None:
    *name, data, end, rest = error_event("why", "it", api).decode().split("\n")
    assert (end, rest) == ("", "")
    document = json.loads(data.removeprefix("data: "))
    assert document["error"]["message"] == "why"
    if api in ("responses", "messages"):
        assert (name, document["type"]) == (["event: error"], "error")
    else:
        assert name == []


def rejection(**facts: object) -> Rejection:
    fields: dict[str, object] = {"request_id": "r", "stage": "guard", "status": 403, "message": "no", "type": "t"}
    return Rejection.model_validate(fields | facts)


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (refusal_of(rejection()), "rejected-by-guard"),
        (refusal_of(rejection(status=429, stage="preprocessor")), "rejected-by-preprocessor"),
        (refusal_of(rejection(status=503, code=STAGE_UNAVAILABLE)), "rejected-unavailable"),
        (refusal_of(rejection(status=429, dropped_reason="rejected-saturated")), "rejected-saturated"),
        (Closed("no decision"), "rejected-unavailable"),
        (Closed("too late", dropped_reason="rejected-deadline-exceeded"), "rejected-deadline-exceeded"),
        (NoEndpoints("none"), "rejected-no-endpoints"),
        (outside_subset(), "rejected-no-endpoints"),
    ],
)
def test_whatever_rejects_a_request_says_why_in_headers_that_clients_of_either_picker_read(
    refusal: Refusal, reason: str
) -> None:
    headers = dict(error_headers(refusal))
    assert headers[b"x-pointsman-dropped-reason"] == headers[b"x-llm-d-request-dropped-reason"] == reason.encode()


def test_an_engines_failure_is_no_rejection() -> None:
    assert error_headers(Refusal(502, "It failed.", code="engine_failed")) == []
