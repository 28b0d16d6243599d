"""A request to a provider, held against its maker's schema and rules."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pointsman_testing.makers import service_model, typed_dicts
from pointsman_testing.makers.rules import broken_rules

_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k"})
"""Members that Anthropic's service takes for the models that have them, and that its SDK has listed until version 1."""
_SENT_ONCE: Final = ("authorization", "x-api-key", "api-key")


def load(kind: str) -> None:
    """Read the schemas of this kind, which takes seconds."""
    if kind == "anthropic":
        problems(kind, "/v1/messages", {}, {"model": "m", "max_tokens": 1, "messages": []})
    elif kind == "bedrock":
        problems(kind, "/model/m/converse", {}, {"messages": []})
    else:
        problems(kind, "/v1/chat/completions", {}, {"model": "m", "messages": []})


def problems(kind: str, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> list[str]:
    """The faults of a request to a provider of this kind; empty if it has none. `path`: with its query; `headers`:
    by lower-case name."""
    found = [f"header {name}: occurs beside {first}" for name, first in _two_credentials(headers)]
    place = urlsplit(path).path
    if kind == "anthropic":
        betas = "anthropic-beta" in headers
        given = {name: value for name, value in body.items() if name not in _SAMPLING}
        return found + typed_dicts.mismatches(given, _messages(betas=betas)) + broken_rules("anthropic", body)
    if kind == "bedrock":
        _, _, model, operation = place.split("/")
        name = {"converse": "Converse", "converse-stream": "ConverseStream"}[operation]
        found += service_model.mismatches(name, unquote(model), body)
        return found or broken_rules("bedrock", body)
    if not place.endswith("/chat/completions"):
        other = next((read for end, read in _OTHERS.items() if place.endswith(end)), None)
        return found if other is None else found + typed_dicts.mismatches(body, other())
    found += typed_dicts.mismatches(_without_googles(body) if kind == "vertex" else body, _chat())
    found += broken_rules("openai", body)
    return found + (broken_rules("vertex", body) if kind == "vertex" else [])


def _two_credentials(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    there = [name for name in _SENT_ONCE if name in headers]
    return [(name, there[0]) for name in there[1:]]


@cache
def _messages(*, betas: bool) -> Any:
    if betas:
        from anthropic.types.beta.message_create_params import MessageCreateParams as Beta

        return Beta
    from anthropic.types.message_create_params import MessageCreateParams

    return MessageCreateParams


@cache
def _chat() -> Any:
    from openai.types.chat.completion_create_params import CompletionCreateParams

    return CompletionCreateParams


def _embeddings() -> Any:
    from openai.types.embedding_create_params import EmbeddingCreateParams

    return EmbeddingCreateParams


def _completions() -> Any:
    from openai.types.completion_create_params import CompletionCreateParams

    return CompletionCreateParams


def _responses() -> Any:
    from openai.types.responses.response_create_params import ResponseCreateParams

    return ResponseCreateParams


_OTHERS: Final[dict[str, Callable[[], Any]]] = {
    "/embeddings": _embeddings,
    "/completions": _completions,
    "/responses": _responses,
}


def _without_googles(body: dict[str, Any]) -> dict[str, Any]:
    """Without the member that Google's service adds to OpenAI's API."""
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        calls = message.get("tool_calls")
        if calls:
            plain = [{name: value for name, value in call.items() if name != "extra_content"} for call in calls]
            message = {**message, "tool_calls": plain}  # noqa: PLW2901
        messages.append(message)
    return {**body, "messages": messages}
