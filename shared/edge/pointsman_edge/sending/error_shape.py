"""The errors of engines, in the shape of the API that the client used.

vLLM and SGLang answer `/v1/messages` with OpenAI's errors, FastAPI writes `detail`, proxies write HTML: the client of
an API raises its typed error for the API's own shape alone.
"""

import re
from typing import Final, cast

from pointsman_apis.api import Api
from pointsman_apis.beginning import LEAST_NOISE, NOISE, finishes_silently
from pointsman_apis.errors import anthropic_error, inference_error
from pointsman_apis.streams import EventSplitter, lenient_document
from pointsman_core import lenient_json
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.unasked_usage import Passing, Rewriting
from pointsman_providers.reported_error import ProviderError, error_in, read_error

_FIRST_BYTES: Final = 256
"""An error that came with status 200 begins with its members."""
_ERROR: Final = b'"error"'
_MEMBERS: Final = {
    "chat.completions": b'"choices"',
    "completions": b'"choices"',
    "embeddings": b'"data"',
    "responses": b'"output"',
    "messages": b'"content"',
}
"""The member that every answer of an API has."""
_CHOICES: Final = b'"choices"'
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*(\[\s*\]|null)')
_NO_WORDS: Final = re.compile(rb'"(?:content|text)"\s*:\s*(?:""|null|\[\s*\]|"!!!!!!!!)')
_LONGEST_SILENT: Final = 4096
"""Bytes up to which an answer may have no word, other than noise."""
_NOISE: Final = NOISE.encode() * LEAST_NOISE
_MAY_BE_TWO: Final = re.compile(rb"\}\s*\{")
"""Between two documents, or in a text, e.g. of a program."""
_SHORTEST: Final = 512
"""Bytes from which on an answer has something in its choices."""


class SaysNothing(Exception):
    """An answer with status 200 lacks what every answer of its API has, and names no error."""


class ErrorShape:
    """Puts one error document into the API's shape; one that has it stays byte for byte, but for the changes of
    `then`."""

    __slots__ = ("_api", "_status", "_then")

    def __init__(self, status: int, api: Api, then: Rewriting | None) -> None:
        self._status = status
        self._api = api
        self._then = then

    def rewrite_bytes(self, data: bytes) -> bytes:
        """Like `Rewriting.rewrite_bytes`: the document is an error."""
        return self.put_in_error(data)

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document."""
        data = shaped(self._api, self._status, data)
        return data if self._then is None else self._then.put_in_error(data)

    def in_pieces(self) -> Passing | None:
        """Like `Rewriting.in_pieces`: a document this large stays as it is."""
        return None if self._then is None else self._then.in_pieces()


def shaped(api: Api, status: int, data: bytes) -> bytes:
    """The body of an error with this status, in the API's shape."""
    try:
        value, _ = lenient_json.read(data)
    except ValueError:
        value = None
    return data if _has_shape(api, value) else api.error(refusal_of(read_error(value, status)))


def shaped_events(api: Api, data: bytes, error: ProviderError | None = None) -> tuple[bytes, ProviderError | None]:
    """Whole events of a stream, errors among them in the API's shape, and the last error; `error` without one."""
    splitter = EventSplitter()
    out: list[bytes] = []
    for event in (*splitter.split_bytes(data), *splitter.rest()):
        document = lenient_document(event.data)
        found = None if document is None or _passes(document) else error_in(document)
        error = found or error
        keeps = found is None or _has_shape(api, document, event=True)
        out.append(event.raw if keeps or found is None else api.error_event(refusal_of(found)))
    return b"".join(out), error


def _passes(document: dict[str, object]) -> bool:
    """Whether an event is an answer with an error of its own kind inside, e.g. a response that failed."""
    return "response" in document


def error_in_place(api: Api, body: bytes) -> ProviderError | None:
    """The error that a whole answer with status 200 is; None for an answer. Raises SaysNothing for a document that is
    neither: it may be a form of its engine's own, or no answer."""
    member = _MEMBERS.get(api.name)
    # A search in the bytes is all that an answer costs.
    whole = member is None or (member in body and body.rstrip().endswith(b"}") and not _MAY_BE_TWO.search(body))
    if whole and _ERROR not in body[:_FIRST_BYTES] and (len(body) > _SHORTEST or not _is_empty(member, body)):
        return None
    try:
        value, _ = lenient_json.read(body)
    except ValueError:
        if member is None:
            return None
        value = {"type": "invalid_answer", "message": "The engine's answer isn't JSON."}
    error = error_in(value)
    if error is not None or member is None:
        return error
    # The member's name may be spelt with escapes.
    document = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    name = member[1:-1].decode()
    if name in document and (member != _CHOICES or document[name]):
        return None
    error = read_error(document)
    if error.message:
        return error
    raise SaysNothing(f"its answer has no `{name}`")


def is_silent(body: bytes) -> bool:
    """Whether a whole answer ends as if all were said, and has no word, thought or call."""
    if (len(body) > _LONGEST_SILENT and _NOISE not in body[:_LONGEST_SILENT]) or _NO_WORDS.search(body) is None:
        return False
    try:
        value, _ = lenient_json.read(body)
    except ValueError:
        return False
    return isinstance(value, dict) and finishes_silently(cast("dict[str, object]", value))


def _is_empty(member: bytes | None, body: bytes) -> bool:
    return member == _CHOICES and _NO_CHOICES.search(body) is not None


def refusal_of(error: ProviderError) -> Refusal:
    """The client's error for an engine's error."""
    message = error.message or f"The engine answered with an error ({error.kind or error.status})."
    return Refusal(error.status, message, type=error.type, code=error.kind, param=error.param, more=error.more)


def _has_shape(api: Api, value: object, *, event: bool = False) -> bool:
    document = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    error = document.get("error")
    if api.error is inference_error:
        return isinstance(error, str)
    if not isinstance(error, dict):
        return False
    # Anthropic's documents name their type, as OpenAI's events of responses do.
    named = document.get("type") == "error"
    return named if api.error is anthropic_error else event or not named
