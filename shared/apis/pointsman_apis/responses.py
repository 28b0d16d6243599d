"""`/v1/responses`. A text as input is one message of the user."""

from collections.abc import Iterator
from typing import Final, cast

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.choices import FILTERED
from pointsman_apis.content_parts import check_content, returned_media
from pointsman_apis.errors import response_error_event
from pointsman_apis.fields import Document
from pointsman_apis.streams import StreamEvent, named_event
from pointsman_apis.texts import Answer, Slot, objects
from pointsman_apis.usage import BeginningTail

_STEM_KINDS: Final = {"output_text": "text", "refusal": "refusal", "reasoning_text": "reasoning"}
"""Kinds of the texts that are streamed as `response.<stem>.delta`; all others are arguments of calls."""
_CALL_STEMS: Final = {
    "function_call": "function_call_arguments",
    "mcp_call": "mcp_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "code_interpreter_call": "code_interpreter_call_code",
}
_PART_STEMS: Final = {"summary_text": "reasoning_summary_text"}


def _view(document: Document, media: list[str]) -> View:
    get = document.get
    given = get("input")
    items: list[Document] = []
    if isinstance(given, str):
        items = [{"role": "user", "content": given}]
    elif given is None:
        if get("previous_response_id") is None and get("prompt") is None:
            raise f.missing("input")
    else:
        items = cast("list[Document]", given)
        if not items:
            raise f.empty("input", "a string or an array of items")
        for position, item in enumerate(items):
            if type(item) is not dict:
                raise f.wrong_type(f"input[{position}]", "an object", item)
            check_content(item.get("content"), f"input[{position}].content", media)
            returned_media(item.get("output"), media)
    return View(items, (get("tools"), get("instructions")))


def _slots(document: Answer) -> Iterator[Slot]:
    return _event(document) if "type" in document else _whole(document)


def _whole(document: Answer, *, repeats: bool = False) -> Iterator[Slot]:
    for index, item in enumerate(objects(document, "output")):
        yield from _item(item, index, repeats=repeats)


def _item(item: Answer, index: object, *, repeats: bool) -> Iterator[Slot]:
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


def _part(part: Answer, index: object, position: object, *, repeats: bool) -> Iterator[Slot]:
    kind = str(part.get("type"))
    stem = _PART_STEMS.get(kind, kind)
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            yield Slot(f"{index}/{stem}/{position}", _kind(stem), part, name, repeats=repeats)


def _event(document: Answer) -> Iterator[Slot]:
    name = str(document.get("type", "")).removeprefix("response.")
    index = document.get("output_index", 0)
    position = document.get("content_index", document.get("summary_index", 0))
    response, item, part = document.get("response"), document.get("item"), document.get("part")
    if isinstance(response, dict):
        yield from _whole(cast("Answer", response), repeats=True)
    elif isinstance(item, dict):
        yield from _item(cast("Answer", item), index, repeats=True)
    elif isinstance(part, dict):
        yield from _part(cast("Answer", part), index, position, repeats=True)
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


def _ends(document: Answer) -> Iterator[str]:
    response = document.get("response", document)
    status = cast("Answer", response).get("status") if isinstance(response, dict) else None
    # Events on the way say that it is in progress.
    if isinstance(status, str) and status not in ("in_progress", "queued") and _is_response(document):
        yield status


def _is_response(document: Answer) -> bool:
    return document.get("object") == "response" or isinstance(document.get("response"), dict)


def _calls_tools(document: Answer) -> bool:
    response = document.get("response", document)
    output = objects(cast("Answer", response), "output") if isinstance(response, dict) else []
    return any(str(item.get("type", "")).endswith("_call") for item in output)


class ResponsesEnd:
    """Follows a stream of numbered events."""

    def __init__(self) -> None:
        self._response: Answer = {}
        self._number = -1

    def note_event(self, event: StreamEvent) -> None:
        """An event has left for the client."""
        document = event.document
        if document is None:
            return
        number = document.get("sequence_number")
        self._number = number if isinstance(number, int) else self._number + 1
        response = document.get("response")
        if isinstance(response, dict):
            self._response = cast("Answer", response)

    def end_as_filtered(self) -> bytes:
        """The events that end a stream early because its content was filtered, in the API's form."""
        response = self._response | {"status": "incomplete", "incomplete_details": {"reason": FILTERED}}
        event = {"type": "response.incomplete", "sequence_number": self._number + 1, "response": response}
        return named_event(event)


RESPONSES: Final = Api(
    name="responses",
    path="/v1/responses",
    fields={
        **f.COMMON,
        **f.TOOLS,
        "input": f.TEXT_OR_LIST,
        "instructions": f.TEXT,
        "max_output_tokens": f.POSITIVE,
        "previous_response_id": f.TEXT,
        "reasoning": f.OBJECT,
        "text": f.OBJECT,
        "store": f.FLAG,
        "background": f.FLAG,
        "service_tier": f.TEXT,
    },
    view=_view,
    in_prompt=frozenset({"input", "tools"}),
    output_limits=("max_output_tokens",),
    template="responses",
    slots=_slots,
    repeats=True,
    echoed=frozenset(
        (
            *("instructions", "tools", "tool_choice", "metadata", "text", "reasoning", "user", "prompt", "truncation"),
            *("safety_identifier", "prompt_cache_key"),
        )
    ),
    usage=BeginningTail,
    end=ResponsesEnd,
    error_event=response_error_event,
    conversation="input",
    ends=_ends,
    complete=frozenset({"completed"}),
    calls_tools=_calls_tools,
)
