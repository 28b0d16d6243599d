"""From the bytes of a request to its structured body."""

from collections.abc import Callable
from typing import Final, cast

from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.body import (
    Chat,
    Completion,
    Content,
    Document,
    Embedding,
    Messages,
    Responses,
    StructuredBody,
)
from pointsman_preprocessor.domain.content_parts import check_content, returned_media
from pointsman_preprocessor.domain.decode import decode
from pointsman_preprocessor.domain.density import check_density
from pointsman_preprocessor.domain.depth import written
from pointsman_preprocessor.domain.schema import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    OBJECT,
    RESPONSES,
    Fields,
    check_fields,
    check_items,
    empty,
    missing,
    not_a_text,
    wrong_type,
)

LONGEST_MODEL_NAME: Final = 256
MAX_VALUES: Final = 262144
"""JSON values in a body: a prompt of 262,143 token ids, or any text."""
_TEXTS_OR_TOKENS: Final = "a string, an array of strings or an array of token ids"
_ROLES_THAT_SAY_SOMETHING: Final = frozenset({"system", "developer", "user", "tool"})
"""Their messages have a content, unless they bring tools. An assistant's may have none: it called tools, or its
reasoning took all its tokens. Of other roles, which some chat templates know, nothing is demanded."""


def parse(path: str, raw: bytes | memoryview, max_values: int = MAX_VALUES) -> StructuredBody:
    """Decode and check the body of a request to `path`. Raises Refusal 400 that names the field, 404 for the path. How
    deep the prompt nests is found by `prompt_of`."""
    api = _APIS.get(path)
    if api is None:
        known = ", ".join(_APIS)
        raise Refusal(404, f"Unknown path; the APIs here are {known}.", code="unknown_url")
    fields, view, of_prompt = api
    check_density(raw, max_values)
    document = decode(raw)
    check_fields(document, fields)
    for name, value in document.items():
        if (type(value) is dict or type(value) is list) and name not in of_prompt:
            written(value)
    _check_model(document.get("model"))
    media: list[str] = []
    return StructuredBody(raw, document, view(document, media), tuple(media))


def _check_model(model: JsonValue) -> None:
    if model is None:
        raise missing("model")
    name = cast("str", model)
    if not name or name.isspace():
        raise empty("model", "the name of a model")
    if len(name) > LONGEST_MODEL_NAME or not name.isprintable():
        raise Refusal(
            400,
            f"Invalid 'model': expected at most {LONGEST_MODEL_NAME} printable characters.",
            param="model",
            code="invalid_value",
        )


def _chat(document: Document, media: list[str]) -> Content:
    get = document.get
    return Chat(
        _messages(document, media),
        cast("list[JsonValue] | None", document.get("tools")),
        cast("list[JsonValue] | None", get("documents")),
        cast("str | None", get("chat_template")),
        cast("Document | None", get("chat_template_kwargs")),
        cast("bool | None", get("add_generation_prompt")),
        cast("bool | None", get("continue_final_message")),
        cast("bool | None", get("return_assistant_tokens_mask")),
    )


def _completion(document: Document, media: list[str]) -> Content:
    del media
    # vLLM takes an empty prompt beside `prompt_embeds`; apart from that neither it nor SGLang does.
    if document.get("prompt") == "" and document.get("prompt_embeds") is None:
        raise empty("prompt", _TEXTS_OR_TOKENS)
    return Completion(_texts(document, "prompt"))


def _embedding(document: Document, media: list[str]) -> Content:
    del media
    return Embedding(_texts(document, "input"))


def _responses(document: Document, media: list[str]) -> Content:
    given = document.get("input")
    if isinstance(given, str):
        items: list[Document] = [{"role": "user", "content": given}]
    elif given is None:
        if document.get("previous_response_id") is None and document.get("prompt") is None:
            raise missing("input")
        items = []
    else:
        items = cast("list[Document]", given)
        if not items:
            raise empty("input", "a string or an array of items")
        for position, item in enumerate(items):
            if type(item) is not dict:
                raise wrong_type(f"input[{position}]", "an object", item)
            check_content(item.get("content"), f"input[{position}].content", media)
            returned_media(item.get("output"), media)
    return Responses(
        items,
        cast("str | None", document.get("instructions")),
        cast("list[JsonValue] | None", document.get("tools")),
        cast("str | None", document.get("previous_response_id")),
    )


def _anthropic(document: Document, media: list[str]) -> Content:
    if document.get("max_tokens") is None:
        raise missing("max_tokens")
    messages = _messages(document, media)
    for position, message in enumerate(messages):
        if message.get("content") is None:
            raise missing(f"messages[{position}].content")
    system = document.get("system")
    if type(system) is list:
        check_content(system, "system", media)
    return Messages(
        messages,
        cast("str | list[JsonValue] | None", system),
        cast("list[JsonValue] | None", document.get("tools")),
    )


def _messages(document: Document, media: list[str]) -> list[Document]:
    given = document.get("messages")
    if given is None:
        raise missing("messages")
    messages = cast("list[Document]", given)
    if not messages:
        raise empty("messages", "at least one message")
    for position, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong_type(f"messages[{position}]", "an object", message)
        role = message.get("role")
        if type(role) is not str:
            raise not_a_text(f"messages[{position}].role", role)
        content = message.get("content")
        if type(content) is not str:
            if content is None and role in _ROLES_THAT_SAY_SOMETHING and "tools" not in message:
                raise missing(f"messages[{position}].content")
            check_content(content, f"messages[{position}].content", media)
        calls = message.get("tool_calls")
        if calls is not None:
            if type(calls) is not list:
                raise wrong_type(f"messages[{position}].tool_calls", "an array", calls)
            check_items(f"messages[{position}].tool_calls", calls, OBJECT)
    return messages


def _texts(document: Document, name: str) -> list[str | list[int]]:
    """One text, several texts, token ids of one prompt, or token ids of several."""
    given = document.get(name)
    if given is None:
        raise missing(name)
    if isinstance(given, str):
        return [given]
    items = cast("list[JsonValue]", given)
    if not items:
        raise empty(name, _TEXTS_OR_TOKENS)
    if type(items[0]) is int:
        _check_tokens(items, name)
        return [cast("list[int]", items)]
    for position, item in enumerate(items):
        if type(item) is list:
            _check_tokens(item, f"{name}[{position}]")
        elif type(item) is not str:
            raise wrong_type(f"{name}[{position}]", "a string or an array of token ids", item)
    return cast("list[str | list[int]]", items)


def _check_tokens(items: list[JsonValue], where: str) -> None:
    if not items:
        raise empty(where, "at least one token id")
    if set(map(type, items)) == {int} and min(cast("list[int]", items)) >= 0 and max(cast("list[int]", items)) < 2**32:
        return
    for position, item in enumerate(items):
        if type(item) is not int:
            raise wrong_type(f"{where}[{position}]", "an integer", item)
        if not 0 <= item < 2**32:
            raise Refusal(
                400,
                f"Invalid value for '{where}[{position}]': expected a token id from 0 to {2**32 - 1}.",
                param=f"{where}[{position}]",
                code="invalid_value",
            )


_APIS: Final[dict[str, tuple[Fields, Callable[[Document, list[str]], Content], frozenset[str]]]] = {
    "/v1/chat/completions": (
        CHAT,
        _chat,
        frozenset({"messages", "tools", "documents", "chat_template_kwargs"}),
    ),
    "/v1/completions": (COMPLETIONS, _completion, frozenset({"prompt"})),
    "/v1/embeddings": (EMBEDDINGS, _embedding, frozenset({"input"})),
    "/v1/responses": (RESPONSES, _responses, frozenset({"input", "tools"})),
    "/v1/messages": (MESSAGES, _anthropic, frozenset({"messages", "system", "tools"})),
}
"""Path → the fields of its body, what makes the view of it, and which fields become the prompt."""
