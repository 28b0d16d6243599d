"""The texts in an answer of any API: where they stand, whose they are, and how to put others in their place."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import orjson

from pointsman_edge.taking_in.routes import MESSAGES, RESPONSES
from pointsman_edge.telling.stream_events import Document

_CHOICE_TEXTS: Final = {
    "content": "text",
    "text": "text",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "refusal": "refusal",
}
"""Members of a chat's message or delta, and of a completion's choice."""
_DEEPER: Final = frozenset({"tool_calls", "function_call", "audio", "reasoning_details"})
"""Members of a chat's message or delta with texts inside."""
_PART_TEXTS: Final = {"text": "text", "refusal": "refusal", "thinking": "reasoning"}
"""Members of the parts of a chat's message."""
_DETAIL_TEXTS: Final = {"text": "reasoning", "summary": "reasoning"}
"""Members of OpenRouter's and MiniMax's `reasoning_details`, which may repeat a chat's `reasoning`."""
_STEM_KINDS: Final = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning"}
"""Kinds of what `/v1/responses` streams as `response.<stem>.delta`; arguments of calls are what is left."""
_BLOCK_TEXTS: Final = {"text": "text", "thinking": "reasoning", "partial_json": "arguments"}
"""Members of blocks and deltas of `/v1/messages`."""


class Slot:
    """One place in a document that holds a text, or a part of one."""

    __slots__ = ("_holder", "_key", "complete", "kind", "part", "repeats")

    def __init__(
        self, part: str, kind: str, holder: Document, key: str, *, repeats: bool = False, complete: bool = False
    ) -> None:
        self.part = part
        """Names the text within the answer: `<choice>/…`, the same in every event of a stream."""
        self.kind = kind
        """As `AnswerText.kind`."""
        self._holder = holder
        self._key = key
        self.repeats = repeats
        """It holds the whole of a text that events before it brought piece by piece."""
        self.complete = complete
        """No event brings more of it."""

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands: the identity of the object that holds it, and the member's name."""
        return id(self._holder), self._key

    @property
    def choice(self) -> str:
        """What its texts come one after the other in."""
        return self.part.partition("/")[0]

    @property
    def text(self) -> str:
        value = self._holder.get(self._key)
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    def put(self, text: str) -> None:
        """Put another text there. Raises ValueError where JSON belongs and this isn't any."""
        put_all([(self, text)])

    def value_for(self, text: str) -> object:
        """What would stand there for a text. Raises ValueError as `put`."""
        return text if isinstance(self._holder.get(self._key), str) else orjson.loads(text)

    def set(self, value: object) -> None:
        """Let a value of `value_for` stand there."""
        self._holder[self._key] = value


def put_all(texts: Sequence[tuple[Slot, str]]) -> None:
    """Put other texts there, all of them or none. Raises ValueError as `Slot.put`."""
    values = [slot.value_for(text) for slot, text in texts]
    for (slot, _), value in zip(texts, values, strict=True):
        slot.set(value)


def slots_of(api: str, document: Document) -> list[Slot]:
    """The texts of a whole answer, or of one event of a stream; empty ones are left out."""
    find: Callable[[Document], Iterator[Slot]] = _choices
    if api == RESPONSES:
        find = _response_event if "type" in document else _response
    elif api == MESSAGES:
        find = _message if document.get("type") == "message" else _message_event
    found = [slot for slot in find(document) if slot.text]
    return [*(slot for slot in _error(document) if slot.text), *found] if _is_error(document) else found


def finished_choices(document: Document) -> list[str]:
    """Choices that an event of a stream ends."""
    return [
        str(choice.get("index", 0))
        for choice in objects(document, "choices")
        if choice.get("finish_reason") is not None
    ]


def _is_error(document: Document) -> bool:
    return bool(document.get("error")) or "error" in (document.get("object"), document.get("type"))


def _error(document: Document) -> Iterator[Slot]:
    said = document.get("error")
    holder = cast("Document", said) if isinstance(said, dict) else document
    yield from _texts(holder, "error", {"message": "error", "error": "error"})


def _choices(document: Document) -> Iterator[Slot]:
    for choice in objects(document, "choices"):
        index = choice.get("index", 0)
        yield from _texts(choice, f"{index}", {"text": "text"})
        for name in ("message", "delta"):
            said = choice.get(name)
            if isinstance(said, dict):
                yield from _said(cast("Document", said), f"{index}")


def _said(said: Document, prefix: str) -> Iterator[Slot]:
    yield from _texts(said, prefix, _CHOICE_TEXTS)
    if _DEEPER.isdisjoint(said) and not isinstance(said.get("content"), list):
        return  # as most events of a stream
    for position, part in enumerate(objects(said, "content")):
        yield from _chat_part(part, f"{prefix}/content/{position}")
    for position, call in enumerate(objects(said, "tool_calls")):
        where = f"{prefix}/tool_calls/{call.get('index', position)}"
        yield from _inner(call, "function", where, {"arguments": "arguments"})
        yield from _inner(call, "custom", where, {"input": "arguments"})
    yield from _inner(said, "function_call", f"{prefix}/function_call", {"arguments": "arguments"})
    yield from _inner(said, "audio", f"{prefix}/audio", {"transcript": "text"})
    for position, detail in enumerate(objects(said, "reasoning_details")):
        yield from _texts(detail, f"{prefix}/reasoning_details/{detail.get('index', position)}", _DETAIL_TEXTS)


def _chat_part(part: Document, where: str) -> Iterator[Slot]:
    yield from _texts(part, where, _PART_TEXTS)
    for position, thought in enumerate(objects(part, "thinking")):
        yield from _texts(thought, f"{where}/thinking/{position}", {"text": "reasoning"})


def _response(document: Document, *, repeats: bool = False) -> Iterator[Slot]:
    for index, item in enumerate(objects(document, "output")):
        yield from _item(item, index, repeats=repeats)


def _item(item: Document, index: object, *, repeats: bool) -> Iterator[Slot]:
    for name in ("content", "summary"):
        for position, part in enumerate(objects(item, name)):
            yield from _part(part, index, position, repeats=repeats)
    for name in ("arguments", "input", "code"):
        if isinstance(item.get(name), str):
            stem = _CALL_STEMS.get(str(item.get("type")), f"{item.get('type')}_{name}")
            yield Slot(f"{index}/{stem}/0", "arguments", item, name, repeats=repeats)
    if isinstance(item.get("output"), str):
        yield Slot(f"{index}/output/0", "result", item, "output", repeats=repeats, complete=True)
    for name, member in (("outputs", "logs"), ("results", "text")):
        for position, told in enumerate(objects(item, name)):
            if isinstance(told.get(member), str):
                yield Slot(f"{index}/{name}/{position}", "result", told, member, repeats=repeats, complete=True)


_CALL_STEMS: Final = {
    "function_call": "function_call_arguments",
    "mcp_call": "mcp_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "code_interpreter_call": "code_interpreter_call_code",
}
_PART_STEMS: Final = {"summary_text": "reasoning_summary_text"}


def _part(part: Document, index: object, position: object, *, repeats: bool) -> Iterator[Slot]:
    kind = str(part.get("type"))
    stem = _PART_STEMS.get(kind, kind)
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            yield Slot(f"{index}/{stem}/{position}", _kind(stem), part, name, repeats=repeats)


def _response_event(document: Document) -> Iterator[Slot]:
    name = str(document.get("type", "")).removeprefix("response.")
    index = document.get("output_index", 0)
    position = document.get("content_index", document.get("summary_index", 0))
    response, item, part = document.get("response"), document.get("item"), document.get("part")
    if isinstance(response, dict):
        yield from _response(cast("Document", response), repeats=True)
    elif isinstance(item, dict):
        yield from _item(cast("Document", item), index, repeats=True)
    elif isinstance(part, dict):
        yield from _part(cast("Document", part), index, position, repeats=True)
    elif name.endswith(".delta") and isinstance(document.get("delta"), str):
        stem = name.removesuffix(".delta")
        yield Slot(f"{index}/{stem}/{position}", _kind(stem), document, "delta")
    elif name.endswith(".done"):
        stem = name.removesuffix(".done")
        for member in ("text", "refusal", "arguments", "input", "code"):
            if isinstance(document.get(member), str):
                yield Slot(f"{index}/{stem}/{position}", _kind(stem), document, member, repeats=True)


def _kind(stem: str) -> str:
    return _STEM_KINDS.get(stem, "reasoning" if stem.startswith("reasoning") else "arguments")


def _message(document: Document) -> Iterator[Slot]:
    for index, block in enumerate(objects(document, "content")):
        yield from _block(block, index)


def _message_event(document: Document) -> Iterator[Slot]:
    for name in ("content_block", "delta"):
        block = document.get(name)
        if isinstance(block, dict):
            index = document.get("index", 0)
            yield from _block(cast("Document", block), index)
            # Of another choice than the text that it belongs to, which may go on.
            yield from _inner(cast("Document", block), "citation", f"citation-{index}", _QUOTED, complete=True)


def _block(block: Document, index: object) -> Iterator[Slot]:
    # Blocks come one after the other: they are texts of one choice.
    yield from _texts(block, f"0/{index}", _BLOCK_TEXTS)
    if isinstance(block.get("input"), dict) and block["input"]:
        yield Slot(f"0/{index}/input", "arguments", block, "input")
    for position, part in enumerate(objects(block, "content")):
        yield from _texts(part, f"0/{index}/content/{position}", {"text": "result"}, complete=True)
    for position, citation in enumerate(objects(block, "citations")):
        yield from _texts(citation, f"citation-{index}/{position}", _QUOTED, complete=True)


_QUOTED: Final = {"cited_text": "result"}


def _inner(
    holder: Document, member: str, prefix: str, members: dict[str, str], *, complete: bool = False
) -> Iterator[Slot]:
    value = holder.get(member)
    if isinstance(value, dict):
        yield from _texts(cast("Document", value), prefix, members, complete=complete)


def _texts(holder: Document, prefix: str, members: dict[str, str], *, complete: bool = False) -> Iterator[Slot]:
    for name, kind in members.items():
        if isinstance(holder.get(name), str):
            yield Slot(f"{prefix}/{name}", kind, holder, name, complete=complete)


def objects(holder: Document, name: str) -> list[Document]:
    """Those in a list of the document; none where there is no list."""
    value = holder.get(name)
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Document", item) for item in items if isinstance(item, dict)]
