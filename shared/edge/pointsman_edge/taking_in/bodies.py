"""Bodies of requests: their type and bounds, their edits, and those of open requests, which stages ask for."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.forms import edit_form, is_form
from pointsman_apis.streams import lenient_document
from pointsman_contracts.content import Content, ContentEdited, ContentEdits, ContentQuery, PromptEnd, PromptTokens
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Decision
from pointsman_core.json_members import edit_fields
from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.request_headers import ClientHeaders

_MEDIA_TYPE: Final = re.compile(r"(application|audio|image|multipart|text|video)/[\w.+-]{1,40}", re.ASCII)


def edited_body(body: bytes, edits: Sequence[BodyEdit], model: str | None) -> bytes:
    """Apply the decision's edits, and `model` when a fallback serves another one. Without any, the very bytes. A form
    gets new values for text members that it has; where there is no body, nothing is edited."""
    if not body or (not edits and model is None):
        return body
    if not body.startswith(b"{") and is_form(body):
        values = {edit.field: edit.value for edit in edits if isinstance(edit.value, str)}
        return edit_form(body, values if model is None else values | {"model": model})
    changes: dict[str, bytes | None] = {edit.field: None if edit.remove else orjson.dumps(edit.value) for edit in edits}
    if model is not None:
        changes["model"] = orjson.dumps(model)
    return edit_fields(body, changes)


def asked_choices(api: str, body: bytes, decision: Decision) -> AskedChoices:
    """The choices that a request asks an engine for."""
    return AskedChoices(api, decision.answers, lambda: lenient_document(edited_body(body, decision.body, None)) or {})


def is_json(content_type: bytes | None) -> bool:
    """Whether a header of this value announces JSON."""
    return (content_type or b"").partition(b";")[0].strip().lower() == b"application/json"


def check_content(headers: ClientHeaders, body: str = "json") -> None:
    """Raise Refusal unless the body's content type is the one of its path (`Api.body`): plain JSON in UTF-8, or a
    form."""
    kind = headers.content_type
    if body == "form":
        if not (kind or "").lower().startswith("multipart/form-data"):
            raise _wrong_content(kind, "multipart/form-data")
    elif kind != "application/json" and body == "json":
        media, _, parameters = (kind or "").lower().partition(";")
        charset = parameters.strip().removeprefix("charset=").strip('"')
        if media.strip() != "application/json":
            raise _wrong_content(kind, "application/json")
        if parameters.strip().startswith("charset=") and charset not in ("utf-8", "utf8"):
            raise Refusal(415, "JSON must be UTF-8; leave the charset out.", code="unsupported_content_type")


def _wrong_content(kind: str | None, right: str) -> Refusal:
    """415. It repeats a media type alone: a header may hold anything."""
    media = (kind or "").partition(";")[0].strip()
    if kind is None:
        sent = "The request has no Content-Type"
    elif _MEDIA_TYPE.fullmatch(media):
        sent = f"The request's Content-Type is {media}"
    else:
        sent = "The request's Content-Type is not a media type"
    return Refusal(415, f"{sent}; send {right}.", code="unsupported_content_type")


def check_length(length: int | None, limit: int) -> None:
    """Raise Refusal 413 if a body of this length is over the limit. None: the length isn't known."""
    if length is not None and length > limit:
        raise Refusal(413, f"The body has {length} bytes; at most {limit} are accepted.", code="body_too_large")


def check_presence(body: bytes, kind: str) -> None:
    """Raise Refusal 400 for no body, or for one on a path that takes none. `kind` as `Api.body`."""
    if kind == "none":
        if body:
            raise Refusal(400, "This path takes no body; leave it out.", code="unexpected_body")
    elif not body:
        raise Refusal(400, "The body is empty; a JSON object is expected.", code="empty_body")


class HeldBody(msgspec.Struct):
    """The body of one request."""

    request_id: str
    original: bytes
    """The body from the client."""
    current: bytes
    """The body for the engine, before the decision's own edits."""
    tokens: PromptTokens | None = None
    """The prompt's tokens, if the preprocessor sent them and no stage has changed the body since."""
    end: PromptEnd | None = None
    """The prompt's end, under the same conditions."""


class HeldBodies:
    """Holds each body from when it is complete until the request's last stage has answered."""

    def __init__(self) -> None:
        self._held: dict[str, HeldBody] = {}

    def hold_body(self, request_id: str, body: bytes) -> HeldBody:
        """A request is complete."""
        held = self._held[request_id] = HeldBody(request_id, body, body)
        return held

    def let_go(self, held: HeldBody) -> None:
        """Drop a body: no stage asks for it any more."""
        # Another request of the client may have the same id by now.
        if self._held.get(held.request_id) is held:
            del self._held[held.request_id]

    def find_body(self, request_id: str, original: bool) -> bytes | None:
        """The body of a request: from the client, or for the engine. None when it isn't held (any more)."""
        held = self._held.get(request_id)
        if held is None:
            return None
        return held.original if original else held.current

    def answer_query(self, query: ContentQuery) -> bytes:
        """Answer a stage that asks for a body: the encoded message."""
        body = self.find_body(query.request_id, query.original)
        if body is None:
            return Content(request_id=query.request_id, held=False).encode()
        if query.at_most is None:
            return b"\n".join((Content(request_id=query.request_id).encode(), body))
        part = memoryview(body)[query.offset : query.offset + query.at_most]
        return b"\n".join((Content(request_id=query.request_id, size=len(body)).encode(), part))

    def take_tokens(self, tokens: PromptTokens) -> None:
        """Keep the tokens of a prompt."""
        held = self._held.get(tokens.request_id)
        if held is not None and held.current is held.original:
            held.tokens = tokens

    def take_end(self, end: PromptEnd) -> None:
        """Keep the end of a prompt."""
        held = self._held.get(end.request_id)
        if held is not None and held.current is held.original:
            held.end = end

    def edit_body(self, edits: ContentEdits) -> bytes:
        """Apply a stage's edits to the body for the engine; returns the encoded answer."""
        held = self._held.get(edits.request_id)
        if held is None:
            return ContentEdited(request_id=edits.request_id, held=False).encode()
        held.current = edited_body(held.original, edits.edits, None)
        # The tokens are those of the prompt before its edits.
        held.tokens = held.end = None
        return ContentEdited(request_id=edits.request_id).encode()
