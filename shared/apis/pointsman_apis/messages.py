"""Anthropic's `/v1/messages` (https://docs.anthropic.com/en/api/messages)."""

from collections.abc import Iterator
from typing import Final, cast

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.content_parts import check_content, read_messages
from pointsman_apis.errors import anthropic_error, anthropic_error_event
from pointsman_apis.fields import Document
from pointsman_apis.streams import StreamEvent, named_event
from pointsman_apis.texts import Answer, Slot, index_of, inner, objects, texts
from pointsman_apis.usage import UsageEnds

_TEXTS: Final = {"text": "text", "thinking": "reasoning", "partial_json": "arguments"}
"""Members of blocks and deltas."""
_QUOTED: Final = {"cited_text": "result"}


def _view(document: Document, media: list[str]) -> View:
    if document.get("max_tokens") is None:
        raise f.missing("max_tokens")
    return conversation(document, media)


def conversation(document: Document, media: list[str]) -> View:
    """The prompt of a request that may have no `max_tokens`. Raises Refusal 400."""
    messages = read_messages(document, media)
    for position, message in enumerate(messages):
        if message.get("content") is None:
            raise f.missing(f"messages[{position}].content")
    system = document.get("system")
    if type(system) is list:
        check_content(system, "system", media)
    return View(messages, (document.get("tools"), system))


def _slots(document: Answer) -> Iterator[Slot]:
    if document.get("type") == "message":
        for index, block in enumerate(objects(document, "content")):
            yield from _block(block, index)
        return
    for name in ("content_block", "delta"):
        block = document.get(name)
        if isinstance(block, dict):
            index = document.get("index", 0)
            yield from _block(cast("Answer", block), index)
            # Of another choice than the text that it belongs to, which may go on.
            yield from inner(cast("Answer", block), "citation", f"citation-{index}", _QUOTED, complete=True)


def _block(block: Answer, index: object) -> Iterator[Slot]:
    # Blocks come one after the other: they are texts of one choice.
    yield from texts(block, f"0/{index}", _TEXTS)
    if isinstance(block.get("input"), dict) and block["input"]:
        yield Slot(f"0/{index}/input", "arguments", block, "input")
    for position, part in enumerate(objects(block, "content")):
        yield from texts(part, f"0/{index}/content/{position}", {"text": "result"}, complete=True)
    for position, citation in enumerate(objects(block, "citations")):
        yield from texts(citation, f"citation-{index}/{position}", _QUOTED, complete=True)


def _ends(document: Answer) -> Iterator[str]:
    for holder in (document, document.get("delta"), document.get("message")):
        reason = cast("Answer", holder).get("stop_reason") if isinstance(holder, dict) else None
        if isinstance(reason, str):
            yield reason


class MessagesEnd:
    """Follows a stream of blocks."""

    def __init__(self) -> None:
        self._open: dict[object, None] = {}

    def note_event(self, event: StreamEvent) -> None:
        """An event has left for the client."""
        document = event.document
        if document is None:
            return
        if document.get("type") == "content_block_start":
            self._open[index_of(document)] = None
        elif document.get("type") == "content_block_stop":
            self._open.pop(index_of(document), None)

    def end_as_filtered(self) -> bytes:
        """The events that end a stream early because its content was filtered, in the API's form."""
        stops = [named_event({"type": "content_block_stop", "index": index}) for index in self._open]
        delta: Answer = {"stop_reason": "refusal", "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 0}}
        return b"".join((*stops, named_event(end), named_event({"type": "message_stop"})))


MESSAGES: Final = Api(
    name="messages",
    path="/v1/messages",
    fields={
        **f.COMMON,
        "messages": f.LIST,
        "system": f.TEXT_OR_LIST,
        "max_tokens": f.POSITIVE,
        "stop_sequences": f.TEXTS,
        "top_k": f.INTEGER,
        "tools": f.OBJECTS,
        "tool_choice": f.OBJECT,
        "thinking": f.OBJECT,
    },
    view=_view,
    in_prompt=frozenset({"messages", "system", "tools"}),
    output_limits=("max_tokens",),
    template="messages",
    slots=_slots,
    usage=UsageEnds,
    end=MessagesEnd,
    error=anthropic_error,
    error_event=anthropic_error_event,
    keep_alive=named_event({"type": "ping"}),
    request_id_header=b"request-id",
    conversation="messages",
    ends=_ends,
    complete=frozenset({"end_turn", "stop_sequence"}),
    tool_ends=frozenset({"tool_use"}),
)
