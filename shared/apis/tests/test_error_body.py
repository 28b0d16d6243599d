"""Errors in the words of each API."""

import json

import pytest

from pointsman_apis import named
from pointsman_core.refusal import Refusal


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
    assert json.loads(named("messages").error(Refusal(status, "why", code="it"))) == {"type": "error", "error": error}


@pytest.mark.parametrize("api", ["chat.completions", "completions", "embeddings", "responses"])
def test_an_error_elsewhere_is_openais(api: str) -> None:
    refusal = Refusal(400, "why", code="it", param="messages")
    error = {"message": "why", "type": "invalid_request_error", "param": "messages", "code": "it"}
    assert json.loads(named(api).error(refusal)) == {"error": error}


@pytest.mark.parametrize("api", ["chat.completions", "completions", "responses", "messages"])
def test_a_stream_that_breaks_off_ends_with_one_event_that_its_clients_raise(api: str) -> None:
    *name, data, end, rest = named(api).error_event(Refusal(502, "why", code="it")).decode().split("\n")
    assert (end, rest) == ("", "")
    document = json.loads(data.removeprefix("data: "))
    assert document["error"]["message"] == "why"
    if api in ("responses", "messages"):
        assert (name, document["type"]) == (["event: error"], "error")
    else:
        assert name == []
