"""The errors of an engine that lacks a path."""

import json

import pytest

from pointsman_apis import named
from pointsman_edge.sending.missing_path import MissingPath
from pointsman_edge.sending.model_name import renaming


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail": "Not Found"}',
        b'{"error": {"message": "Not Found", "type": "NotFoundError", "param": null, "code": 404}}',
        b'{"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}',
        b'{"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}',
        b"404 page not found",
        b"",
    ],
)
def test_words_that_say_nothing_become_ones_that_name_the_path_and_the_model(body: bytes) -> None:
    said = json.loads(MissingPath(404, named("moderations"), "llama", None).put_in_error(body))["error"]
    assert said["message"].startswith("The engine that serves llama has no /v1/moderations;")
    assert (said["type"], said["code"]) == ("invalid_request_error", "unsupported_by_engine")


def test_a_missing_method_is_no_missing_path() -> None:
    words = MissingPath(405, named("responses.retrieve"), "llama", None).rewrite_bytes(
        b'{"detail": "Method Not Allowed"}'
    )
    assert b"doesn't allow this method on /v1/responses/{id}" in words


def test_anthropics_clients_get_anthropics_error() -> None:
    said = json.loads(MissingPath(404, named("messages.count_tokens"), "llama", None).put_in_error(b"Not Found"))
    assert (said["type"], said["error"]["type"]) == ("error", "not_found_error")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "Response with id resp_1 not found."}}',
        b'{"error": {"message": "The model `served` does not exist."}}',
        b'{"error": 404}',
        b"[]",
    ],
)
def test_an_error_about_the_request_passes_with_the_clients_name_of_the_model(body: bytes) -> None:
    path = MissingPath(404, named("chat.completions"), "asked", renaming("served", "asked"))
    assert path.put_in_error(body) == body.replace(b"served", b"asked")


def test_a_routers_own_page_is_replaced_whatever_it_says() -> None:
    path = MissingPath(404, named("rerank"), "llama", None, anyway=True)
    assert b"has no /v1/rerank" in path.put_in_error(b"<html>nothing here</html>")
