"""Whether an answer may be given again: it is whole, no error, not cut short, and calls no tools."""

from collections.abc import Iterator
from typing import Final, cast

import orjson

Document = dict[str, object]

_FINISHED: Final = {
    "chat.completions": frozenset({"stop"}),
    "completions": frozenset({"stop"}),
    "messages": frozenset({"end_turn", "stop_sequence"}),
    "responses": frozenset({"completed"}),
}
_CALLS: Final = {"chat.completions": frozenset({"tool_calls", "function_call"}), "messages": frozenset({"tool_use"})}
"""How an answer ends that calls tools."""
_LIMITED: Final = frozenset({"length", "max_tokens"})
_LAST: Final = {"chat.completions": b"[DONE]", "completions": b"[DONE]"}
"""What the last event of a stream says besides."""


def unworthy(api: str, body: bytes, *, stream: bool, tool_calls: bool, cut_short: bool = False) -> str | None:
    """Why an answer isn't kept, in a word; None when it may be."""
    documents, last = _events(body) if stream else (_documents(body), b"")
    if documents is None:
        return "not JSON"
    if any(document.get("error") is not None or document.get("type") == "error" for document in documents):
        return "error"
    if api == "embeddings":
        return None if not stream and documents[0].get("data") else "incomplete"
    if stream and last != _LAST.get(api, last):
        return "incomplete"
    ends = {end for document in documents for end in _ends(api, document)}
    calls = _CALLS.get(api, frozenset[str]())
    if not ends:
        return "incomplete"
    if ends & calls or any(_calls_tools(document) for document in documents):
        if not tool_calls:
            return "tool calls"
        ends -= calls
    cut = ends - _FINISHED.get(api, frozenset()) - (_LIMITED if cut_short else frozenset())
    return f"ended by {min(cut)}" if cut else None


def _documents(body: bytes) -> list[Document] | None:
    try:
        parsed = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    return [cast("Document", parsed)] if isinstance(parsed, dict) else None


def _events(body: bytes) -> tuple[list[Document] | None, bytes]:
    """The documents of a stream's events, and the data of the last one."""
    documents: list[Document] = []
    last = b""
    for event in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
        if not lines:
            continue
        last = b"\n".join(lines)
        if last == b"[DONE]":
            continue
        parsed = _documents(last)
        if parsed is None:
            return None, last
        documents += parsed
    return documents, last


def _ends(api: str, document: Document) -> Iterator[str]:
    if api == "responses":
        response = document.get("response", document)
        status = cast("Document", response).get("status") if isinstance(response, dict) else None
        # Events on the way say that it is in progress.
        if isinstance(status, str) and status not in ("in_progress", "queued") and _is_response(document):
            yield status
    elif api == "messages":
        for holder in (document, document.get("delta"), document.get("message")):
            reason = cast("Document", holder).get("stop_reason") if isinstance(holder, dict) else None
            if isinstance(reason, str):
                yield reason
    else:
        choices = document.get("choices")
        for choice in cast("list[object]", choices) if isinstance(choices, list) else []:
            reason = cast("Document", choice).get("finish_reason") if isinstance(choice, dict) else None
            if isinstance(reason, str):
                yield reason


def _is_response(document: Document) -> bool:
    return document.get("object") == "response" or isinstance(document.get("response"), dict)


def _calls_tools(document: Document) -> bool:
    """Of `/v1/responses`, whose status doesn't tell."""
    response = document.get("response", document)
    output = cast("Document", response).get("output") if isinstance(response, dict) else None
    items = cast("list[object]", output) if isinstance(output, list) else []
    return any(
        str(cast("Document", item).get("type", "")).endswith("_call") for item in items if isinstance(item, dict)
    )
