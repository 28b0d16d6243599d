"""Anthropic's Messages API (https://docs.anthropic.com/en/api/messages): OpenAI's chat is translated, messages pass."""

from typing import Final

import orjson

from pointsman_apis.chat import CHAT
from pointsman_apis.messages import MESSAGES
from pointsman_providers.anthropic_answer import Messages
from pointsman_providers.chat_messages import ChatText, Image, Part, ToolCall, ToolResult, unsayable
from pointsman_providers.chat_request import Chat, Tool, read_chat
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import unsupported
from pointsman_providers.passed_answer import Passed

VERSION: Final = "2023-06-01"
_PATH: Final = MESSAGES.path
_APIS: Final = (CHAT.name, MESSAGES.name)
_WHO: Final = "Anthropic"
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh"})
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "any"}


class Anthropic:
    """The format. `max_tokens` is the limit of a request that sets none, because this API requires one."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """As `Format.call`."""
        headers = {"anthropic-version": VERSION}
        if question.api == MESSAGES.name:
            return ProviderCall(_PATH, headers, question.body, Passed(question))
        if question.api not in _APIS:
            raise unsupported(question.api, _WHO, _APIS)
        chat = read_chat(question.body, _WHO, extras=("top_k",))
        _check(chat)
        body = orjson.dumps(self._message(chat, question.model))
        return ProviderCall(_PATH, headers, body, Messages(question, include_usage=chat.include_usage))

    def _message(self, chat: Chat, model: str) -> dict[str, object]:
        message: dict[str, object] = {
            "model": model,
            "max_tokens": self._max_tokens if chat.max_tokens is None else chat.max_tokens,
            "messages": [{"role": turn.role, "content": [_block(part) for part in turn.parts]} for turn in chat.turns],
            **chat.extra,
        }
        if chat.system:
            message["system"] = "\n\n".join(chat.system)
        if chat.tools:
            message["tools"] = [_tool(tool) for tool in chat.tools]
            choice = _tool_choice(chat)
            if choice is not None:
                message["tool_choice"] = choice
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


def _block(part: Part) -> dict[str, object]:
    match part:
        case ChatText(text):
            return {"type": "text", "text": text}
        case Image(None, url):
            return {"type": "image", "source": {"type": "url", "url": url}}
        case Image(media_type, data):
            return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
        case ToolCall(identity, name, arguments):
            return {"type": "tool_use", "id": identity, "name": name, "input": arguments}
        case ToolResult(identity, parts):
            content = [_block(each) for each in parts]
            return {"type": "tool_result", "tool_use_id": identity, **({"content": content} if content else {})}


def _tool(tool: Tool) -> dict[str, object]:
    entry: dict[str, object] = {"name": tool.name, "input_schema": tool.schema}
    if tool.description is not None:
        entry["description"] = tool.description
    if tool.strict is not None:
        entry["strict"] = tool.strict
    return entry


def _tool_choice(chat: Chat) -> dict[str, object] | None:
    choice = chat.tool_choice
    if choice is None and chat.parallel_tool_calls:
        return None
    if choice is not None and choice.startswith("="):
        entry: dict[str, object] = {"type": "tool", "name": choice[1:]}
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
)
