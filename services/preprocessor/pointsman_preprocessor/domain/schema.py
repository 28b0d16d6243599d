"""Which fields the five APIs have, of which types and within which bounds. What isn't listed is passed on unseen.

Types are those that OpenAI documents (Anthropic for its own API), wider where vLLM or SGLang takes more. Bounds are
coarse: a negative `temperature` is refused by OpenAI, vLLM and SGLang alike. Finer ones differ between them and are
the engine's to judge: `temperature` above 2, a `top_p` of 0, `stream_options` without `stream`, an empty `input`.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple, cast

from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.decode import Document, kind_of

Rule = Callable[[str, JsonValue], None]
"""Checks a value of the right type, given the name of its field. Raises Refusal 400."""


class Expected(NamedTuple):
    """What a field may hold."""

    words: str
    types: tuple[type, ...]
    rule: Rule | None = None
    """What else must be right about it."""


def _bounded(words: str, types: tuple[type, ...], least: float, most: float = inf) -> Expected:
    def rule(name: str, value: JsonValue) -> None:
        if not least <= cast("float", value) <= most:
            raise Refusal(
                400,
                f"Invalid value for '{name}': expected {words}, but got {value}.",
                param=name,
                code="invalid_value",
            )

    return Expected(words, types, rule)


def _with_items(words: str, types: tuple[type, ...], item: Expected) -> Expected:
    def rule(name: str, value: JsonValue) -> None:
        if type(value) is list:
            check_items(name, value, item)

    return Expected(words, types, rule)


TEXT: Final = Expected("a string", (str,))
OBJECT: Final = Expected("an object", (dict,))
TEXT_OR_OBJECT: Final = Expected("a string or an object", (str, dict))
_FLAG: Final = Expected("a boolean", (bool,))
_NUMBER: Final = Expected("a number", (int, float))
_INTEGER: Final = Expected("an integer", (int,))
_COUNT: Final = _bounded("an integer of 0 or more", (int,), 0)
_POSITIVE: Final = _bounded("an integer of 1 or more", (int,), 1)
_TEMPERATURE: Final = _bounded("a number of 0 or more", (int, float), 0)
_TOP_P: Final = _bounded("a number from 0 to 1", (int, float), 0, 1)
# vLLM takes -1.
_ALTERNATIVES: Final = _bounded("an integer of 0 or more, or -1 for all of them", (int,), -1)
# SGLang takes numbers.
_EFFORT: Final = Expected("a string or a number", (str, int, float))
_LIST: Final = Expected("an array", (list,))
_TEXTS: Final = _with_items("an array", (list,), TEXT)
_OBJECTS: Final = _with_items("an array", (list,), OBJECT)
_TEXT_OR_LIST: Final = Expected("a string or an array", (str, list))
_TEXT_OR_TEXTS: Final = _with_items("a string or an array", (str, list), TEXT)

Fields = Mapping[str, Expected]

_SAMPLING: Final[Fields] = {
    "model": TEXT,
    "stream": _FLAG,
    "stream_options": OBJECT,
    "temperature": _TEMPERATURE,
    "top_p": _TOP_P,
    "user": TEXT,
    "metadata": OBJECT,
    "cache_salt": TEXT,
}
_GENERATION: Final[Fields] = {
    **_SAMPLING,
    "max_tokens": _COUNT,
    "n": _POSITIVE,
    "stop": _TEXT_OR_TEXTS,
    "seed": _INTEGER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "logit_bias": OBJECT,
    "response_format": OBJECT,
}
_TOOLS: Final[Fields] = {"tools": _OBJECTS, "tool_choice": TEXT_OR_OBJECT, "parallel_tool_calls": _FLAG}

CHAT: Final[Fields] = {
    **_GENERATION,
    **_TOOLS,
    "messages": _LIST,
    "max_completion_tokens": _POSITIVE,
    "logprobs": _FLAG,
    "top_logprobs": _ALTERNATIVES,
    "reasoning_effort": _EFFORT,
    "store": _FLAG,
    "service_tier": TEXT,
    "modalities": _TEXTS,
    "functions": _OBJECTS,
    # Hugging Face chat-template fields (S4-3).
    "documents": _OBJECTS,
    "chat_template": TEXT,
    "chat_template_kwargs": OBJECT,
    "add_generation_prompt": _FLAG,
    "continue_final_message": _FLAG,
    "return_assistant_tokens_mask": _FLAG,
}
COMPLETIONS: Final[Fields] = {
    **_GENERATION,
    "prompt": _TEXT_OR_LIST,
    "suffix": TEXT,
    "best_of": _POSITIVE,
    "echo": _FLAG,
    "logprobs": _ALTERNATIVES,
}
EMBEDDINGS: Final[Fields] = {
    "model": TEXT,
    "input": _TEXT_OR_LIST,
    "encoding_format": TEXT,
    "dimensions": _POSITIVE,
    "user": TEXT,
}
RESPONSES: Final[Fields] = {
    **_SAMPLING,
    **_TOOLS,
    "input": _TEXT_OR_LIST,
    "instructions": TEXT,
    "max_output_tokens": _POSITIVE,
    "previous_response_id": TEXT,
    "reasoning": OBJECT,
    "text": OBJECT,
    "store": _FLAG,
    "background": _FLAG,
    "service_tier": TEXT,
}
MESSAGES: Final[Fields] = {
    **_SAMPLING,
    "messages": _LIST,
    "system": _TEXT_OR_LIST,
    "max_tokens": _POSITIVE,
    "stop_sequences": _TEXTS,
    "top_k": _INTEGER,
    "tools": _OBJECTS,
    "tool_choice": OBJECT,
    "thinking": OBJECT,
}


def check_fields(document: Document, fields: Fields) -> None:
    """Refuse the first field that is wrong. A field that is null counts as absent."""
    for name, value in document.items():
        expected = fields.get(name)
        if expected is None or value is None:
            continue
        if type(value) not in expected.types:
            raise wrong_type(name, expected.words, value)
        if expected.rule is not None:
            expected.rule(name, value)


def check_items(where: str, items: list[JsonValue], item: Expected) -> None:
    """Refuse the first item that is of a wrong type."""
    for position, value in enumerate(items):
        if type(value) not in item.types:
            raise wrong_type(f"{where}[{position}]", item.words, value)


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


def not_a_text(param: str, value: JsonValue) -> Refusal:
    """The refusal of what is there in place of a text that must be there."""
    return missing(param) if value is None else wrong_type(param, TEXT.words, value)


def empty(param: str, expected: str) -> Refusal:
    """The refusal of an array or text that must not be empty."""
    return Refusal(400, f"Invalid '{param}': expected {expected}, but it is empty.", param=param, code="invalid_value")
