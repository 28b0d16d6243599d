"""Reads OpenAI's chat completion requests into values that other APIs have equivalents for.

An unknown field is refused, so that none is dropped silently.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import orjson
from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_providers.answer_schema import answer_schema
from pointsman_providers.chat_messages import CacheMark, ChatText, ChatTurn, Fields, cache_mark, read_turns, unsayable
from pointsman_providers.tool_schema import object_schema

HINTS: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)
"""Fields that change no answer: left out where a provider has none of them."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tools": ([],),
    "verbosity": ("medium",),
}
"""Values that ask for nothing."""
_READ: Final = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "parallel_tool_calls",
        "reasoning_effort",
        "response_format",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    }
)


class Tool(NamedTuple):
    """A function that the model may ask for."""

    name: str
    description: str | None
    schema: Fields
    """The JSON schema of an object."""
    strict: bool | None
    cache: CacheMark | None = None


class Chat(NamedTuple):
    """A request."""

    system: tuple[ChatText, ...]
    turns: tuple[ChatTurn, ...]
    tools: tuple[Tool, ...]
    tool_choice: str | None
    """`auto`, `none`, `required`, or `=` and the name of a function."""
    parallel_tool_calls: bool
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    schema: tuple[str, Fields] | None
    """Name and JSON schema that the answer has to fit."""
    effort: str | None
    user: str | None
    extra: Fields
    """Fields of the engine's own that `extras` allowed."""


def read_chat(body: bytes, who: str, extras: Iterable[str] = ()) -> Chat:
    """Read a body that preprocessing has checked. Raises Refusal 400 with the field that `who` doesn't support."""
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refusal(400, "The body must be JSON.") from None
    if not isinstance(document, dict):
        raise Refusal(400, "The body must be a JSON object.")
    fields = {name: value for name, value in document.items() if value is not None}
    extra: dict[str, JsonValue] = {}
    for name, value in fields.items():
        if name in _READ or name in HINTS or value in _NEUTRAL.get(name, ()):
            continue
        if name not in extras:
            raise unsayable(name, who)
        extra[name] = value
    system, turns = read_turns(fields.get("messages"), who, str(fields.get("model")))
    options = fields.get("stream_options")
    temperature, top_p = _number(fields, "temperature", who), _number(fields, "top_p", who)
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise unsayable("max_tokens", who)
    effort, user = fields.get("reasoning_effort"), fields.get("safety_identifier", fields.get("user"))
    if effort is not None and not isinstance(effort, str):
        raise unsayable("reasoning_effort", who)
    return Chat(
        system=tuple(system),
        turns=tuple(turns),
        tools=tuple(_tools(fields, who)),
        tool_choice=_tool_choice(fields, who),
        parallel_tool_calls=fields.get("parallel_tool_calls") is not False,
        max_tokens=limit,
        temperature=temperature,
        top_p=top_p,
        stop=_stop(fields, who),
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        schema=_schema(fields, who),
        effort=effort,
        user=user if isinstance(user, str) else None,
        extra=extra,
    )


def _tools(fields: Fields, who: str) -> list[Tool]:
    tools = fields.get("tools")
    found: list[Tool] = []
    for number, tool in enumerate(tools if isinstance(tools, list) else []):
        match tool:
            case {"type": "function", "function": {"name": str(name), **rest}}:
                description, strict = rest.get("description"), rest.get("strict")
                schema = object_schema(rest.get("parameters"))
                if schema is None:
                    raise unsayable(f"tools[{number}].function.parameters", who, "They must be an object's schema.")
                where = f"tools[{number}]"
                found.append(
                    Tool(
                        name,
                        description if isinstance(description, str) and description.strip() else None,
                        schema,
                        strict if isinstance(strict, bool) else None,
                        cache_mark(tool, where, who) or cache_mark(rest, f"{where}.function", who),
                    )
                )
            case _:
                raise unsayable(f"tools[{number}]", who)
    return found


def _tool_choice(fields: Fields, who: str) -> str | None:
    match fields.get("tool_choice"):
        case None:
            return None
        case str(choice) if choice in ("auto", "none", "required"):
            return choice
        case {"type": "function", "function": {"name": str(name)}}:
            return f"={name}"
        case _:
            raise unsayable("tool_choice", who)


def _stop(fields: Fields, who: str) -> tuple[str, ...]:
    stop = fields.get("stop")
    if stop is None:
        return ()
    words = stop if isinstance(stop, list) else [stop]
    found = tuple(word for word in words if isinstance(word, str))
    if len(found) < len(words):
        raise unsayable("stop", who)
    return found


def _schema(fields: Fields, who: str) -> tuple[str, Fields] | None:
    match fields.get("response_format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_schema", "json_schema": {"name": str(name), "schema": dict(schema)}}:
            return name, answer_schema(schema)
        case _:
            raise unsayable("response_format", who, "It must be `text` or `json_schema`.")


def _number(fields: Fields, name: str, who: str) -> float | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise unsayable(name, who)
    return value
