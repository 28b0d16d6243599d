"""`/v1/chat/completions`, with the members of Hugging Face chat templates that vLLM and SGLang take."""

from collections.abc import Iterator
from typing import Final, cast

from pointsman_apis import fields as f
from pointsman_apis.api import Api, View
from pointsman_apis.choices import SAMPLING, ChoicesEnd, finish_reasons
from pointsman_apis.content_parts import read_messages
from pointsman_apis.fields import Document
from pointsman_apis.texts import Answer, Slot, inner, objects, texts

_TEXTS: Final = {
    "content": "text",
    "text": "text",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
    "refusal": "refusal",
}
"""Members of a message or delta."""
_DEEPER: Final = frozenset({"tool_calls", "function_call", "audio", "reasoning_details"})
"""Members of a message or delta with texts inside."""
_PART_TEXTS: Final = {"text": "text", "refusal": "refusal", "thinking": "reasoning"}
_DETAIL_TEXTS: Final = {"text": "reasoning", "summary": "reasoning"}
"""Members of OpenRouter's and MiniMax's `reasoning_details`, which may repeat `reasoning`."""

_RENDERED_FIRST: Final = ("tools", "documents", "chat_template", "chat_template_kwargs")
_RENDERED: Final = frozenset(_RENDERED_FIRST)


def _view(document: Document, media: list[str]) -> View:
    get = document.get
    messages = read_messages(document, media)
    head = () if _RENDERED.isdisjoint(document) else tuple([get(name) for name in _RENDERED_FIRST])
    answers: int = get("n") or 1  # pyright: ignore[reportAssignmentType] - as the reader checked
    return View(messages, head, answers=answers)


def choice_slots(document: Answer) -> Iterator[Slot]:
    """The texts in a document of OpenAI's `choices`, of chats and of completions."""
    for choice in objects(document, "choices"):
        index = choice.get("index", 0)
        yield from texts(choice, f"{index}", {"text": "text"})
        for name in ("message", "delta"):
            said = choice.get(name)
            if isinstance(said, dict):
                yield from _said(cast("Answer", said), f"{index}")


def _said(said: Answer, prefix: str) -> Iterator[Slot]:
    yield from texts(said, prefix, _TEXTS)
    if _DEEPER.isdisjoint(said) and not isinstance(said.get("content"), list):
        return  # as most events of a stream
    for position, part in enumerate(objects(said, "content")):
        yield from _part(part, f"{prefix}/content/{position}")
    for position, call in enumerate(objects(said, "tool_calls")):
        where = f"{prefix}/tool_calls/{call.get('index', position)}"
        yield from inner(call, "function", where, {"arguments": "arguments"})
        yield from inner(call, "custom", where, {"input": "arguments"})
    yield from inner(said, "function_call", f"{prefix}/function_call", {"arguments": "arguments"})
    yield from inner(said, "audio", f"{prefix}/audio", {"transcript": "text"})
    for position, detail in enumerate(objects(said, "reasoning_details")):
        yield from texts(detail, f"{prefix}/reasoning_details/{detail.get('index', position)}", _DETAIL_TEXTS)


def _part(part: Answer, where: str) -> Iterator[Slot]:
    yield from texts(part, where, _PART_TEXTS)
    for position, thought in enumerate(objects(part, "thinking")):
        yield from texts(thought, f"{where}/thinking/{position}", {"text": "reasoning"})


CHAT: Final = Api(
    name="chat.completions",
    path="/v1/chat/completions",
    fields={
        **SAMPLING,
        **f.TOOLS,
        "messages": f.LIST,
        "max_completion_tokens": f.POSITIVE,
        "logprobs": f.FLAG,
        "top_logprobs": f.ALTERNATIVES,
        "reasoning_effort": f.EFFORT,
        "store": f.FLAG,
        "service_tier": f.TEXT,
        "modalities": f.TEXTS,
        "functions": f.OBJECTS,
        # Of Hugging Face chat templates.
        "documents": f.OBJECTS,
        "chat_template": f.TEXT,
        "chat_template_kwargs": f.OBJECT,
        "add_generation_prompt": f.FLAG,
        "continue_final_message": f.FLAG,
        "return_assistant_tokens_mask": f.FLAG,
    },
    view=_view,
    in_prompt=frozenset({"messages", "tools", "documents", "chat_template_kwargs"}),
    output_limits=("max_completion_tokens", "max_tokens"),
    template="chat",
    usage_option=True,
    slots=choice_slots,
    end=lambda: ChoicesEnd({"delta": {}}),
    conversation="messages",
    ends=finish_reasons,
    complete=frozenset({"stop"}),
    tool_ends=frozenset({"tool_calls", "function_call"}),
    last_data=b"[DONE]",
)
