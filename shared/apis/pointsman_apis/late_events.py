"""A whole answer, or an error, as the events of a stream that the client has begun to read."""

from typing import Final, cast

import orjson

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_apis.streams import DONE, event, lenient_document, named_event
from pointsman_apis.texts import Answer, objects
from pointsman_core.lenient_json import write
from pointsman_core.refusal import Refusal

_ERROR: Final = 400
_USAGE: Final = ("id", "object", "created", "model", "usage")


def as_events(api: Api, status: int, body: bytes) -> bytes:
    """The events that say the same as an answer with this status and body."""
    document = lenient_document(body)
    if status >= _ERROR or document is None:
        return api.error_event(_refusal(status, document))
    if "choices" in document:
        return _chunks(document)
    if api is MESSAGES:
        return _message(document)
    if api is RESPONSES:
        return named_event({"type": "response.completed", "sequence_number": 0, "response": document})
    return event(write(document))


def _refusal(status: int, document: Answer | None) -> Refusal:
    """The error of a body in the API's own shape."""
    error = cast("object", (document or {}).get("error"))
    found = cast("Answer", error) if isinstance(error, dict) else {}
    details = found.get("details")
    inner = cast("Answer", details) if isinstance(details, dict) else {}
    message, code = found.get("message"), found.get("code") or inner.get("error_code")
    return Refusal(
        max(status, _ERROR),
        message if isinstance(message, str) else "The answer isn't a stream, and can't be read.",
        code=code if isinstance(code, str) else None,
    )


def _chunks(document: Answer) -> bytes:
    """OpenAI's choices: one chunk with the whole of each, and the usage."""
    choices = [{"index": position, **_delta(choice)} for position, choice in enumerate(objects(document, "choices"))]
    kind = document.get("object")
    if kind == "chat.completion":
        document = {**document, "object": "chat.completion.chunk"}
    chunk = {name: value for name, value in document.items() if name != "usage"}
    events = [event(write({**chunk, "choices": choices}))]
    if isinstance(document.get("usage"), dict):
        head = {name: document[name] for name in _USAGE if name in document}
        events.append(event(write({**head, "choices": []})))
    return b"".join((*events, DONE))


def _delta(choice: Answer) -> Answer:
    said = choice.get("message")
    if not isinstance(said, dict):
        return choice
    message = cast("Answer", said)
    calls = [{"index": index, **call} for index, call in enumerate(objects(message, "tool_calls"))]
    kept = {name: value for name, value in choice.items() if name != "message"}
    return {**kept, "delta": {**message, **({"tool_calls": calls} if calls else {})}}


def _message(document: Answer) -> bytes:
    """Anthropic's message: each block begins with the whole of it, as some services with this API write them."""
    began: Answer = {**document, "content": [], "stop_reason": None, "stop_sequence": None}
    events = [named_event({"type": "message_start", "message": began})]
    for index, block in enumerate(objects(document, "content")):
        start, delta = _block(block)
        events.append(named_event({"type": "content_block_start", "index": index, "content_block": start}))
        if delta is not None:
            events.append(named_event({"type": "content_block_delta", "index": index, "delta": delta}))
        events.append(named_event({"type": "content_block_stop", "index": index}))
    delta = {name: document.get(name) for name in ("stop_reason", "stop_sequence")}
    end = {"type": "message_delta", "delta": delta, "usage": document.get("usage") or {"output_tokens": 0}}
    return b"".join((*events, named_event(end), named_event({"type": "message_stop"})))


def _block(block: Answer) -> tuple[Answer, Answer | None]:
    """The beginning of a block, and the delta with its content."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": ""}, {"type": "text_delta", "text": text}
        case {"type": "thinking", "thinking": str(text)}:
            return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": text}
        case {"type": "tool_use", "input": given}:
            return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": orjson.dumps(given).decode()}
        case _:
            return block, None
