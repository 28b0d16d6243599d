"""OpenAI-compatible services, and others that serve the API which the client used: requests and answers pass through.

Only the model's name changes, so that the client gets back the name that it asked for.
"""

from collections.abc import Iterable
from typing import Final

import orjson
from pydantic import JsonValue

from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.responses import RESPONSES
from pointsman_apis.streams import DONE, StreamEvent, event
from pointsman_contracts.response import Usage
from pointsman_core.refusal import Refusal
from pointsman_providers.errors import BrokenAnswer, json_object
from pointsman_providers.exchange import ProviderCall, ProviderQuestion, StreamReader
from pointsman_providers.kind import ProviderKind
from pointsman_providers.provider_events import ProviderEvents

PATHS: Final = {api.name: api.path.removeprefix("/v1") for api in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)}
"""After a base URL that ends in `/v1`."""
_NESTED: Final = ("response", "message")
"""Members of an event that are a whole answer themselves: of OpenAI's responses, of Anthropic's messages."""
_LAST: Final = frozenset({"response.completed", "response.failed", "response.incomplete", "message_stop"})
"""Types of events that end streams which end without `[DONE]`."""


class OpenAI:
    """The format."""

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """As `Format.call`."""
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "an OpenAI-compatible provider", PATHS)
        return ProviderCall(path, {}, question.body, Passed(question.asked))


def unsupported(api: str, who: str, known: Iterable[str]) -> Refusal:
    """The refusal of an API that a provider doesn't have."""
    names = ", ".join(known)
    return Refusal(
        400,
        f"The model is served by {who}, which doesn't have the API {api}; it has {names}.",
        code="unsupported_api",
        param="model",
    )


class Passed:
    """Reads answers in the format that the client speaks."""

    usage: Usage | None = None
    """Stays where it is: in what the client gets."""

    def __init__(self, asked: str) -> None:
        self._asked = asked

    def whole(self, body: bytes) -> bytes:
        """As `Answer.whole`."""
        return orjson.dumps(self._renamed(json_object(body)))

    def stream(self) -> StreamReader:
        """As `Answer.stream`."""
        return _PassedStream(self)

    def renamed_event(self, data: bytes) -> tuple[bytes, str]:
        """One event's data for the client, and its `type`."""
        document = json_object(data)
        error = document.get("error")
        kind = document.get("type")
        if kind == "error" or (isinstance(error, dict) and "choices" not in document):
            raise BrokenAnswer("the provider ended the stream with an error")
        return orjson.dumps(self._renamed(document)), kind if isinstance(kind, str) else ""

    def _renamed(self, document: dict[str, JsonValue]) -> dict[str, JsonValue]:
        self._rename(document)
        for name in _NESTED:
            inner = document.get(name)
            if isinstance(inner, dict):
                self._rename(inner)
        return document

    def _rename(self, document: dict[str, JsonValue]) -> None:
        if "model" in document:
            document["model"] = self._asked


class _PassedStream:
    def __init__(self, answer: Passed) -> None:
        self._answer = answer
        self._events = ProviderEvents()
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        return b"".join(map(self._pass, self._events.feed(data)))

    def end(self) -> bytes:
        rest = b"".join(map(self._pass, self._events.end()))
        if not self._ended:
            raise BrokenAnswer("the stream ended early")
        return rest

    def _pass(self, each: StreamEvent) -> bytes:
        if each.data.strip() == b"[DONE]":
            self._ended = True
            return DONE
        data, kind = self._answer.renamed_event(each.data)
        self._ended = self._ended or kind in _LAST
        return event(data, each.name)


KIND: Final = ProviderKind("openai", lambda _: OpenAI(), lambda _: "https://api.openai.com/v1")
