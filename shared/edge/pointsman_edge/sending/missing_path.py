"""The 404 and 405 of an engine that lacks a path: their message is replaced by one that names the path and the
model."""

import re
from typing import Final

import orjson

from pointsman_apis.api import Api
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.unasked_usage import Passing, Rewriting

MISSING: Final = (404, 405)
"""Statuses of such an answer."""
_SAYS_NOTHING: Final = re.compile(
    r"(404:?)?\s*(page|file|path|route)?\s*(not found|method not allowed)?\.?", re.ASCII | re.IGNORECASE
)
"""Messages of routers for an unknown path. "Not Found": FastAPI, in vLLM and SGLang; "404 page not found":
Go, in Ollama; "File Not Found": llama.cpp; none: axum, in TGI. A longer message is about the request."""


class MissingPath:
    """Replaces an error that only reports an unknown path; any other one passes, with the changes of `then`."""

    __slots__ = ("_anyway", "_api", "_model", "_status", "_then")

    def __init__(self, status: int, api: Api, model: str, then: Rewriting | None, *, anyway: bool = False) -> None:
        """`model`: its name for the client. `anyway`: replace the answer whatever its body is, because it isn't an
        API's error."""
        self._anyway = anyway
        self._status = status
        self._api = api
        self._model = model
        self._then = then

    def rewrite_bytes(self, data: bytes) -> bytes:
        """Like `Rewriting.rewrite_bytes`: the document is an error."""
        return self.put_in_error(data)

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document."""
        if not (self._anyway or says_nothing(data)):
            return data if self._then is None else self._then.put_in_error(data)
        missing = "has no" if self._status == MISSING[0] else "doesn't allow this method on"
        message = f"The engine that serves {self._model} {missing} {self._api.path}; choose a model whose engine does."
        return self._api.error(
            Refusal(self._status, message, type="invalid_request_error", code="unsupported_by_engine")
        )

    def in_pieces(self) -> Passing | None:
        """Like `Rewriting.in_pieces`: a document this large reports more than an unknown path."""
        return None if self._then is None else self._then.in_pieces()


def says_nothing(body: bytes) -> bool:
    """Whether an error with this body only reports an unknown path."""
    return _SAYS_NOTHING.fullmatch(_words(body)) is not None


def is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether an answer with these headers (names in lower case) is JSON."""
    return any(name == b"content-type" and b"json" in value for name, value in headers)


def _words(body: bytes) -> str:
    """The message of an error, as FastAPI, OpenAI and Anthropic write it, or the body itself."""
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()
    for name in ("error", "detail", "message"):
        if isinstance(document, dict) and name in document:
            document = document[name]  # pyright: ignore[reportUnknownVariableType] # any JSON
    return document.strip() if isinstance(document, str) else "?"
