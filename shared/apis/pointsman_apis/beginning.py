"""Where the answer in a stream begins to say something.

Until then another endpoint can take the request, and the client reads of one answer alone: an engine that sends the
role, or `message_start`, and then breaks off has answered nothing.
"""

from collections.abc import Mapping
from typing import Final, cast

from pointsman_apis.streams import StreamEvent, lenient_document
from pointsman_apis.texts import Answer, objects

NOISE: Final = "!"
"""The token 0 of most vocabularies. An engine whose numbers overflow answers it over and over, often until it is
restarted (https://github.com/vllm-project/vllm/issues/14126, 13035 and 53305)."""
GIVEN_UP: Final = ("abort", "cancelled")
"""Reasons by which engines end a choice for their own sake: those of vLLM and SGLang, and of TensorRT-LLM."""
LEAST_NOISE: Final = 16
"""Characters from which on a text of nothing else has no word."""
_ASIDE: Final = frozenset({"role", "index", "type", "id", "name"})
"""Members of a delta that say nothing by themselves."""
_ASIDE_OF_PARTS: Final = _ASIDE | {"status", "signature", "phase", "annotations", "logprobs"}
_SAID_ALL: Final = ("stop", "length", "end_turn", "max_tokens")
"""Reasons of an end that say nothing about the answer, as a filter's would."""
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_PREPARING: Final = frozenset(
    (
        *("message_start", "ping", "response.created", "response.queued", "response.in_progress"),
        *("response.content_part.added", "response.reasoning_summary_part.added"),
    )
)
"""Types of events before the first word."""
_STARTS: Final = {"content_block_start": "content_block", "response.output_item.added": "item"}
"""Types of events that say something if the block or item that they start does: the member that holds it."""
_CLOSING: Final = frozenset({"content_block_stop", "message_stop"})
_CLOSING_WITH: Final[Mapping[object, str]] = {
    "response.content_part.done": "part",
    "response.output_item.done": "item",
}
"""The member that holds the part that ends."""
_CALLS: Final = ("_use", "_call")
"""Endings of the types of blocks and items that call something, which says something by itself."""


def says_something(document: Mapping[str, object]) -> bool:
    """Whether the document of an event has a part of the answer, or its end."""
    if "choices" in document:
        choices = document["choices"]
        if isinstance(choices, list):
            for choice in cast("list[object]", choices):
                if isinstance(choice, dict) and _says(cast("Answer", choice)):
                    return True
        return False
    kind = document.get("type")
    if not isinstance(kind, str):
        return True
    started = document.get(_STARTS.get(kind, ""))
    if not isinstance(started, dict):
        return kind not in _PREPARING
    block = cast("Answer", started)
    return str(block.get("type")).endswith(_CALLS) or _has(block, _ASIDE_OF_PARTS)


def may_give_up(data: bytes) -> bool:
    """Whether `gives_up` is worth reading these bytes for. A search is all that an answer costs."""
    return b'"abort"' in data or b'"cancelled"' in data


def gives_up(document: Mapping[str, object]) -> bool:
    """Whether an engine ends a choice for its own sake."""
    return any(choice.get("finish_reason") in GIVEN_UP for choice in objects(document, "choices"))


def finishes_silently(document: Mapping[str, object]) -> bool:
    """Whether a whole answer, or a stream with this event, ends as if all were said, and the document has no word,
    thought or call."""
    kind = document.get("type")
    if kind == "message_delta":
        return _member(document, "delta").get("stop_reason") in _SAID_ALL
    if kind == "message":
        return document.get("stop_reason") in _SAID_ALL and not any(map(_says_part, objects(document, "content")))
    response = _member(document, "response") if kind == "response.completed" else document
    if response.get("object") == "response":
        return response.get("status") == "completed" and not any(map(_says_part, objects(response, "output")))
    choices = objects(document, "choices")
    return bool(choices) and all(map(_finishes_silently, choices))


def closes_silently(document: Mapping[str, object]) -> bool:
    """Whether an event of messages or responses ends a part of the answer, or all of it, and has no word itself."""
    kind = document.get("type")
    if kind == "response.output_text.done":
        return not document.get("text")
    if kind in _CLOSING:
        return True
    return kind in _CLOSING_WITH and not _says_part(_member(document, _CLOSING_WITH[kind]))


def _says_part(part: Mapping[str, object]) -> bool:
    """Whether a block, an item or a part of one has a word, thought or call."""
    inner = objects(part, "content") if isinstance(part.get("content"), list) else []
    if inner:
        return any(map(_says_part, inner))
    if _is_noise(part.get("text")):
        return False
    return str(part.get("type")).endswith(_CALLS) or _has(part, _ASIDE_OF_PARTS)


def _member(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = document.get(name)
    return cast("Answer", value) if isinstance(value, dict) else {}


def count_noise(document: Mapping[str, object]) -> int:
    """Characters of an event whose text is noise alone; 0 for any other event."""
    kind = document.get("type")
    if kind == "content_block_delta":
        text = _member(document, "delta").get("text")
    elif kind == "response.output_text.delta":
        text = document.get("delta")
    else:
        choices = objects(document, "choices")
        if len(choices) != 1 or choices[0].get("finish_reason"):
            return 0
        delta = choices[0].get("delta")
        text = choices[0].get("text") if delta is None else _member(choices[0], "delta").get("content")
    return len(text) if isinstance(text, str) and not text.strip(NOISE) else 0


def _finishes_silently(choice: Mapping[str, object]) -> bool:
    if choice.get("finish_reason") not in _SAID_ALL or choice.get("stop_reason") is not None:
        # A stop string of the client's that came at once is vLLM's `stop_reason`.
        return False
    if not _has_words(choice):
        return True
    message = _member(choice, "message")
    return _is_noise(message.get("content", choice.get("text"))) and not message.get("tool_calls")


def _is_noise(text: object) -> bool:
    return isinstance(text, str) and len(text) >= LEAST_NOISE and not text.strip(NOISE)


def _says(choice: Answer) -> bool:
    return bool(choice.get("finish_reason")) or _has_words(choice)


def _has_words(choice: Mapping[str, object]) -> bool:
    without = True
    for name in ("delta", "message"):
        said = choice.get(name)
        if isinstance(said, dict):
            without = False
            if _has(cast("Answer", said), _ASIDE):
                return True
    return without and choice.get("text") not in _EMPTY


def _has(holder: Mapping[str, object], aside: frozenset[str]) -> bool:
    # A generator would double the cost of the first event of each stream.
    for name, value in holder.items():  # noqa: SIM110
        if name not in aside and value not in _EMPTY:
            return True
    return False


def begins(event: StreamEvent) -> bool:
    """Whether an event says something. Data that isn't an object does, too, e.g. `[DONE]`; a comment doesn't."""
    if not event.data:
        return False
    document = lenient_document(event.data)
    return document is None or says_something(document)
