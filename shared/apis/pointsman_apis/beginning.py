"""Where the answer in a stream begins to say something.

Until then another endpoint can take the request, and the client reads of one answer alone: an engine that sends the
role, or `message_start`, and then breaks off has answered nothing.
"""

from collections.abc import Mapping
from typing import Final, cast

from pointsman_apis.streams import StreamEvent, lenient_document
from pointsman_apis.texts import Answer

_ASIDE: Final = frozenset({"role", "index", "type", "id", "name"})
"""Members of a delta that say nothing by themselves."""
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
    return str(block.get("type")).endswith(_CALLS) or _has(block, _ASIDE | {"status", "signature", "phase"})


def _says(choice: Answer) -> bool:
    if choice.get("finish_reason") is not None:
        return True
    without = True
    for name in ("delta", "message"):
        said = choice.get(name)
        if isinstance(said, dict):
            without = False
            if _has(cast("Answer", said), _ASIDE):
                return True
    return without and choice.get("text") not in _EMPTY


def _has(holder: Answer, aside: frozenset[str]) -> bool:
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
