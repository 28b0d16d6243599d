"""Makes the messages of a chat ones that OpenAI's own service and the strict ones among its likes take.

The answers of other models, sent back, have members that OpenAI's API doesn't have, ids longer than it takes
(vLLM's `chatcmpl-tool-` and 32 digits: BerriAI/litellm #17343) or none, calls without a result. A body that needs no
change stays byte for byte.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson
from pydantic import JsonValue

from pointsman_providers.call_ids import at_most, of_nine
from pointsman_providers.chat_history import NO_RESULT

Message = dict[str, JsonValue]

LONGEST_ID: Final = 40
IDS: Final[dict[str, Callable[[str], str]]] = {
    "openai": lambda given: at_most(given, LONGEST_ID),
    "mistral": of_nine,
}
"""Like `tool_call_ids` of the configuration."""
_ASSISTANT: Final = frozenset({"role", "content", "name", "refusal", "audio", "tool_calls", "function_call"})
"""Members of an assistant's message (openai-python, `ChatCompletionAssistantMessageParam`)."""
_CALL: Final = {"function": ("name", "arguments"), "custom": ("name", "input")}
_PARTS: Final = frozenset({"text", "refusal"})
"""Types of parts that an assistant's message may have."""
_UNSIGNED: Final = "skip_thought_signature_validator"
"""Gemini's word for a call that another model made (https://ai.google.dev/gemini-api/docs/thought-signatures)."""
_GEMINI: Final = re.compile(r"gemini-([3-9]|[1-9]\d)")
"""Models that refuse calls without a signature of their thought."""


class ChatDialect(NamedTuple):
    """The messages that one service takes."""

    ids: str = "openai"
    """See `IDS`."""
    strict: bool = False
    """It refuses members that OpenAI's API doesn't have."""
    google: bool = False
    """Calls have Google's `extra_content`, which holds the signature of a thought."""


LENIENT: Final = ChatDialect()


def mended_chat(body: bytes, dialect: ChatDialect) -> bytes:
    """The body as the service takes it; the same bytes if it needs no change."""
    if b'"assistant"' not in body and b'"tool"' not in body and not (dialect.strict and b"cache_control" in body):
        return body
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(messages, list):
        return body
    if not all(isinstance(message, dict) for message in messages):
        return body
    given = [message for message in messages if isinstance(message, dict)]
    found = [_with_ids(message, IDS[dialect.ids]) for message in given]
    tools = document.get("tools")
    if dialect.strict:
        found = _answered([_as_openai(message, dialect) for message in found])
        tools = _without_marks(tools)
    if dialect.google and _GEMINI.search(str(document.get("model"))):
        found = [_with_signature(message) for message in found]
    changed: dict[str, JsonValue] = {}
    if found != given:
        changed["messages"] = list(found)
    if tools != document.get("tools"):
        changed["tools"] = tools
    return orjson.dumps({**document, **changed}) if changed else body


_REFUSED: Final = re.compile(
    rb"reasoning|thinking|cache_control|extra_content|annotations|additional propert|extra (inputs|fields)|unknown name"
    rb"|unrecognized|not permitted|unsupported",
    re.IGNORECASE,
)
"""Words by which services refuse members of messages."""
_MISSING: Final = re.compile(rb"reasoning_content.{0,40}(missing|must be passed back|required)", re.DOTALL)
"""DeepSeek's and Kimi's words for an answer without its reasoning (openclaw/openclaw #10085, earendil-works/pi #3640).
"""
_NOT_KEPT: Final = "(not kept)"


def repaired_messages(body: bytes, error: bytes, dialect: ChatDialect) -> bytes | None:
    """The body for a service that refused it by this error; None where its messages aren't the reason."""
    if _MISSING.search(error) is not None:
        document = orjson.loads(body)
        said = [each for each in document["messages"] if each["role"] == "assistant"]
        lacking = [each for each in said if not each.get("reasoning_content")]
        for each in lacking:
            each["reasoning_content"] = _NOT_KEPT
        return orjson.dumps(document) if lacking else None
    if dialect.strict or _REFUSED.search(error) is None:
        return None
    stricter = mended_chat(body, dialect._replace(strict=True))
    return stricter if stricter != mended_chat(body, dialect) else None


def _calls(message: Message) -> list[Message]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _with_ids(message: Message, fitted: Callable[[str], str]) -> Message:
    identity = message.get("tool_call_id")
    if isinstance(identity, str) and identity != fitted(identity):
        return {**message, "tool_call_id": fitted(identity)}
    calls = _calls(message)
    if all(call.get("id") == _fitted(call, fitted) for call in calls):
        return message
    return {**message, "tool_calls": [{**call, "id": _fitted(call, fitted)} for call in calls]}


def _fitted(call: Message, fitted: Callable[[str], str]) -> str:
    identity = call.get("id")
    return fitted(identity) if isinstance(identity, str) else ""


def _as_openai(message: Message, dialect: ChatDialect) -> Message:
    """The message with OpenAI's members alone."""
    content = message.get("content")
    parts: JsonValue = _without_marks(content)
    if message.get("role") != "assistant":
        kept = {name: value for name, value in message.items() if name != "cache_control"}
        return {**kept, "content": parts} if "content" in kept else kept
    if isinstance(parts, list):
        parts = [part for part in parts if isinstance(part, dict) and part.get("type") in _PARTS] or None
    found: Message = {name: value for name, value in message.items() if name in _ASSISTANT and value is not None}
    calls: list[JsonValue] = [_as_openais_call(call, dialect) for call in _calls(message)]
    found.pop("tool_calls", None)
    if calls:
        found["tool_calls"] = calls
    said = bool(calls) or "function_call" in found or "audio" in found or bool(found.get("refusal"))
    found["content"] = parts if parts is not None or said else ""
    return found


def _as_openais_call(call: Message, dialect: ChatDialect) -> Message:
    kind = "custom" if call.get("type") == "custom" else "function"
    inner = call.get(kind)
    held = inner if isinstance(inner, dict) else {}
    texts = {name: held.get(name) for name in _CALL[kind]}
    body: dict[str, JsonValue] = {
        name: value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()
        for name, value in texts.items()
    }
    if kind == "function":
        body["arguments"] = body["arguments"] or "{}"
    found: Message = {"id": call.get("id"), "type": kind, kind: body}
    extra = call.get("extra_content")
    if dialect.google and extra is not None:
        found["extra_content"] = extra
    return found


def _answered(messages: list[Message]) -> list[Message]:
    """Each call with an id of its own and with its result right behind its turn, and no result without a call."""
    found: list[Message] = []
    waiting: list[tuple[str, str]] = []
    after = 0
    for message in messages:
        role = message.get("role")
        if role == "tool":
            given = str(message.get("tool_call_id") or "")
            call = next((call for call in waiting if call[0] == given), None)
            if call is None:
                found.append({"role": "user", "content": _as_said(message.get("content"))})
                continue
            waiting.remove(call)
            found.insert(after, {**message, "tool_call_id": call[1]})
            after += 1
            continue
        if role == "assistant":
            found[after:after] = [_no_result(identity) for _, identity in waiting]
            waiting, numbered = _numbered(message)
            found.append(numbered)
            after = len(found)
        else:
            found.append(message)
    found[after:after] = [_no_result(identity) for _, identity in waiting]
    return found


def _numbered(message: Message) -> tuple[list[tuple[str, str]], Message]:
    """The old and new ids of a turn's calls, and the turn with the new ones."""
    ids: list[tuple[str, str]] = []
    for number, call in enumerate(_calls(message)):
        given = str(call.get("id") or "")
        twice = not given or any(given == identity for _, identity in ids)
        ids.append((given, f"call_{number}" if twice else given))
    if all(old == new for old, new in ids):
        return ids, message
    calls: list[JsonValue] = [{**call, "id": new} for call, (_, new) in zip(_calls(message), ids, strict=True)]
    return ids, {**message, "tool_calls": calls}


def _no_result(identity: str) -> Message:
    return {"role": "tool", "tool_call_id": identity, "content": NO_RESULT}


def _as_said(content: JsonValue) -> JsonValue:
    return f"(Result of a tool: {content})" if isinstance(content, str) else content or NO_RESULT


def _with_signature(message: Message) -> Message:
    """The first call of an answer has the signature of its thought."""
    calls: list[JsonValue] = [*_calls(message)]
    match calls[:1]:
        case [{"extra_content": {"google": {"thought_signature": str(_)}}}] | []:
            return message
        case [dict(first), *_]:
            extra: Message = {"google": {"thought_signature": _UNSIGNED}}
            return {**message, "tool_calls": [{**first, "extra_content": extra}, *calls[1:]]}
        case _:
            return message


def _without_marks(entries: JsonValue) -> JsonValue:
    """Parts or tools without `cache_control`: the services cache by themselves."""
    if not isinstance(entries, list) or not any(isinstance(each, dict) and "cache_control" in each for each in entries):
        return entries
    return [
        {name: value for name, value in each.items() if name != "cache_control"} if isinstance(each, dict) else each
        for each in entries
    ]
