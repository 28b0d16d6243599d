"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages): OpenAI's chat is translated, messages pass."""

from typing import Final

import orjson

from pointsman_apis.chat import CHAT
from pointsman_apis.messages import MESSAGES
from pointsman_providers.anthropic_answer import Messages
from pointsman_providers.call_ids import CallIds, ToolNames
from pointsman_providers.chat_blocks import mended_turns
from pointsman_providers.chat_messages import CacheMark, ChatText, Image, Part, ToolCall, ToolResult, unsayable
from pointsman_providers.chat_request import Chat, Tool, read_chat
from pointsman_providers.client_parts import with_query
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import REQUEST, ProviderKind
from pointsman_providers.message_history import mended_messages, without_thoughts
from pointsman_providers.openai import unsupported
from pointsman_providers.passed_answer import Passed
from pointsman_providers.thoughts import Thought

VERSION: Final = "2023-06-01"
_PATH: Final = MESSAGES.path
_APIS: Final = (CHAT.name, MESSAGES.name)
_WHO: Final = "Anthropic"
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh"})
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_EXTRAS: Final = ("top_k", "thinking", "cache_control")
"""Fields of this API that a chat may have besides OpenAI's."""
IDS: Final = CallIds(64)
LONGEST_NAME: Final = 128
"""The longest name of a tool, of `[a-zA-Z0-9_-]` (https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use)."""


class Anthropic:
    """The format. `max_tokens` is the limit of a request that sets none, because this API requires one."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        sent = question.sent
        if question.api == MESSAGES.name:
            headers = {"anthropic-version": VERSION, **sent.headers}
            path = with_query(_PATH, sent.query)
            return ProviderCall(path, headers, mended_messages(question.body, IDS), Passed(question))
        if question.api not in _APIS:
            raise unsupported(question.api, _WHO, _APIS)
        chat = read_chat(question.body, _WHO, extras=_EXTRAS)
        _check(chat)
        names = ToolNames([tool.name for tool in chat.tools], LONGEST_NAME)
        body = orjson.dumps(self._message(chat, question.model, names))
        answer = Messages(question, include_usage=chat.include_usage, names=names.back)
        return ProviderCall(_PATH, {**sent.headers, "anthropic-version": VERSION}, body, answer)

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Like `Format.repair_question`: a signature that another model made can't be told from the model's own."""
        if question.api != MESSAGES.name or b"thinking" not in error:
            return None
        body = without_thoughts(question.body)
        return None if body is None else question._replace(body=body)

    def _message(self, chat: Chat, model: str, names: ToolNames) -> dict[str, object]:
        turns = mended_turns(chat.turns, IDS, _WHO)
        message: dict[str, object] = {
            "model": model,
            "max_tokens": self._max_tokens if chat.max_tokens is None else chat.max_tokens,
            "messages": [
                {"role": turn.role, "content": [_block(part, names) for part in turn.parts]} for turn in turns
            ],
            **chat.extra,
        }
        if any(text.cache for text in chat.system):
            message["system"] = [_block(text, names) for text in chat.system]
        elif chat.system:
            message["system"] = "\n\n".join(text.text for text in chat.system)
        called = {part.name: None for turn in turns for part in turn.parts if isinstance(part, ToolCall)}
        if chat.tools:
            message["tools"] = [_tool(tool, names) for tool in chat.tools]
            choice = _tool_choice(chat, names)
            if choice is not None:
                message["tool_choice"] = choice
        elif called:
            # A history with calls has to declare tools; the model can't call these.
            message["tools"] = [_tool(Tool(name, None, {"type": "object"}, None), names) for name in called]
            message["tool_choice"] = {"type": "none"}
        if chat.stop:
            message["stop_sequences"] = list(chat.stop)
        if chat.temperature is not None:
            message["temperature"] = chat.temperature
        if chat.top_p is not None:
            message["top_p"] = chat.top_p
        if chat.user is not None:
            message["metadata"] = {"user_id": chat.user}
        output: dict[str, object] = {}
        if chat.schema is not None:
            output["format"] = {"type": "json_schema", "schema": chat.schema[1]}
        if chat.effort is not None:
            output["effort"] = chat.effort
        if output:
            message["output_config"] = output
        if chat.stream:
            message["stream"] = True
        return message


def _check(chat: Chat) -> None:
    if chat.temperature is not None and not 0 <= chat.temperature <= 1:
        raise unsayable("temperature", _WHO, "It must be between 0 and 1.")
    if chat.effort is not None and chat.effort not in _EFFORTS:
        raise unsayable("reasoning_effort", _WHO, f"It must be one of {', '.join(sorted(_EFFORTS))}.")
    if not all(word.strip() for word in chat.stop):
        raise unsayable("stop", _WHO, "A word at which the answer stops needs a character besides white space.")


def _block(part: Part, names: ToolNames) -> dict[str, object]:
    match part:
        case ChatText(text, cache):
            return {"type": "text", "text": text, **_mark(cache)}
        case Image(None, url, cache):
            return {"type": "image", "source": {"type": "url", "url": url}, **_mark(cache)}
        case Image(media_type, data, cache):
            if media_type not in _IMAGES:
                raise unsayable("messages", _WHO, f"An image must be one of {', '.join(sorted(_IMAGES))}.")
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": "image", "source": source, **_mark(cache)}
        case ToolCall(identity, name, arguments, cache):
            return {
                "type": "tool_use", "id": identity, "name": names.name_for_provider(name), "input": arguments,
                **_mark(cache),
            }  # fmt: skip
        case ToolResult(identity, parts, cache):
            content = [_block(each, names) for each in parts]
            result = {"type": "tool_result", "tool_use_id": identity, **({"content": content} if content else {})}
            return {**result, **_mark(cache)}
        case Thought(text, signature, redacted):
            if redacted:
                return {"type": "redacted_thinking", "data": signature}
            return {"type": "thinking", "thinking": text, "signature": signature}


def _mark(cache: CacheMark | None) -> dict[str, object]:
    if cache is None:
        return {}
    return {"cache_control": {"type": "ephemeral", **({"ttl": cache.ttl} if cache.ttl is not None else {})}}


def _tool(tool: Tool, names: ToolNames) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": names.name_for_provider(tool.name),
        "input_schema": tool.schema,
        **_mark(tool.cache),
    }
    if tool.description is not None:
        entry["description"] = tool.description
    if tool.strict is not None:
        entry["strict"] = tool.strict
    return entry


def _tool_choice(chat: Chat, names: ToolNames) -> dict[str, object] | None:
    choice = chat.tool_choice
    if choice is None and chat.parallel_tool_calls:
        return None
    if choice is not None and choice.startswith("="):
        entry: dict[str, object] = {"type": "tool", "name": names.name_for_provider(choice[1:])}
    else:
        entry = {"type": _CHOICES[choice or "auto"]}
    if not chat.parallel_tool_calls and entry["type"] != "none":
        entry["disable_parallel_tool_use"] = True
    return entry


KIND: Final = ProviderKind(
    "anthropic",
    lambda provider: Anthropic(provider.default_max_tokens),
    lambda _: "https://api.anthropic.com",
    header=lambda secret: ("x-api-key", secret),
    client_headers=("anthropic-beta", "anthropic-version", "x-claude-code-session-id", "x-app", *REQUEST),
    client_query=("beta",),
)
