"""Which fields the five APIs have and of which types. What isn't listed is passed on unseen."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.decode import Document, kind_of


class Expected(NamedTuple):
    """What a field may hold."""

    words: str
    types: tuple[type, ...]
    least: int | None = None
    """Smallest number allowed."""


_TEXT: Final = Expected("a string", (str,))
_FLAG: Final = Expected("a boolean", (bool,))
_NUMBER: Final = Expected("a number", (int, float))
_INTEGER: Final = Expected("an integer", (int,))
_COUNT: Final = Expected("an integer of 0 or more", (int,), 0)
_POSITIVE: Final = Expected("an integer of 1 or more", (int,), 1)
_LIST: Final = Expected("an array", (list,))
_OBJECT: Final = Expected("an object", (dict,))
_TEXT_OR_LIST: Final = Expected("a string or an array", (str, list))
_TEXT_OR_OBJECT: Final = Expected("a string or an object", (str, dict))

Fields = Mapping[str, Expected]

_SAMPLING: Final[Fields] = {
    "model": _TEXT,
    "stream": _FLAG,
    "stream_options": _OBJECT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "user": _TEXT,
    "metadata": _OBJECT,
    "cache_salt": _TEXT,
}
_GENERATION: Final[Fields] = {
    **_SAMPLING,
    "max_tokens": _COUNT,
    "n": _POSITIVE,
    "stop": _TEXT_OR_LIST,
    "seed": _INTEGER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logit_bias": _OBJECT,
    "response_format": _OBJECT,
}
_TOOLS: Final[Fields] = {"tools": _LIST, "tool_choice": _TEXT_OR_OBJECT, "parallel_tool_calls": _FLAG}

CHAT: Final[Fields] = {
    **_GENERATION,
    **_TOOLS,
    "messages": _LIST,
    "max_completion_tokens": _POSITIVE,
    "logprobs": _FLAG,
    "top_logprobs": _COUNT,
    "reasoning_effort": _TEXT,
    "service_tier": _TEXT,
    "modalities": _LIST,
    "functions": _LIST,
    # Hugging Face chat-template fields (S4-3).
    "documents": _LIST,
    "chat_template": _TEXT,
    "chat_template_kwargs": _OBJECT,
    "add_generation_prompt": _FLAG,
    "continue_final_message": _FLAG,
    "return_assistant_tokens_mask": _FLAG,
}
COMPLETIONS: Final[Fields] = {
    **_GENERATION,
    "prompt": _TEXT_OR_LIST,
    "suffix": _TEXT,
    "best_of": _POSITIVE,
    "echo": _FLAG,
    "logprobs": _COUNT,
}
EMBEDDINGS: Final[Fields] = {
    "model": _TEXT,
    "input": _TEXT_OR_LIST,
    "encoding_format": _TEXT,
    "dimensions": _POSITIVE,
    "user": _TEXT,
}
RESPONSES: Final[Fields] = {
    **_SAMPLING,
    **_TOOLS,
    "input": _TEXT_OR_LIST,
    "instructions": _TEXT,
    "max_output_tokens": _POSITIVE,
    "previous_response_id": _TEXT,
    "reasoning": _OBJECT,
    "text": _OBJECT,
    "store": _FLAG,
    "background": _FLAG,
    "service_tier": _TEXT,
}
MESSAGES: Final[Fields] = {
    **_SAMPLING,
    "messages": _LIST,
    "system": _TEXT_OR_LIST,
    "max_tokens": _POSITIVE,
    "stop_sequences": _LIST,
    "top_k": _INTEGER,
    "tools": _LIST,
    "tool_choice": _OBJECT,
    "thinking": _OBJECT,
}


def check_fields(document: Document, fields: Fields) -> None:
    """Refuse the first field of a wrong type. A field that is null counts as absent."""
    for name, value in document.items():
        expected = fields.get(name)
        if expected is None or value is None:
            continue
        if type(value) not in expected.types:
            raise wrong_type(name, expected.words, value)
        # Whatever has a least value has numeric types only.
        if expected.least is not None and value < expected.least:  # pyright: ignore[reportOperatorIssue]
            raise Refusal(
                400,
                f"Invalid value for '{name}': expected {expected.words}, but got {value}.",
                param=name,
                code="invalid_value",
            )


def wrong_type(param: str, expected: str, value: JsonValue) -> Refusal:
    """The refusal of a value of the wrong type; it names the type, not the value."""
    return Refusal(
        400,
        f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> Refusal:
    """The refusal of a request without a field that it must have."""
    return Refusal(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def empty(param: str, expected: str) -> Refusal:
    """The refusal of an array or text that must not be empty."""
    return Refusal(400, f"Invalid '{param}': expected {expected}, but it is empty.", param=param, code="invalid_value")
