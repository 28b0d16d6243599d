"""AWS Bedrock's Converse (https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html)."""

from typing import Final
from urllib.parse import quote

import orjson

from pointsman_apis.chat import CHAT
from pointsman_providers.bedrock_answer import Converse
from pointsman_providers.call_ids import CallIds, ToolNames
from pointsman_providers.chat_blocks import has_calls, mended_turns, without_calls
from pointsman_providers.chat_messages import (
    CacheMark,
    ChatText,
    ChatTurn,
    Image,
    Part,
    ToolCall,
    ToolResult,
    unsayable,
)
from pointsman_providers.chat_request import Chat, Tool, read_chat
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import unsupported
from pointsman_providers.thoughts import Thought

_APIS: Final = (CHAT.name,)
_WHO: Final = "AWS Bedrock"
_IMAGES: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
IDS: Final = CallIds(64)
LONGEST_NAME: Final = 64
"""The longest name of a tool; botocore's service model has it, and `[a-zA-Z0-9_-]` for names. Reports have the same for
ids."""
_BETA: Final = "anthropic-beta"
"""Converse takes betas as a field of the model's own."""
_NOTHING: Final = "(no output)"


class Bedrock:
    """The format."""

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        if question.api not in _APIS:
            raise unsupported(question.api, _WHO, _APIS)
        chat = read_chat(question.body, _WHO)
        if chat.effort is not None:
            raise unsayable("reasoning_effort", _WHO)
        operation = "converse-stream" if chat.stream else "converse"
        path = f"/model/{quote(question.model, safe='')}/{operation}"
        names = ToolNames([tool.name for tool in chat.tools], LONGEST_NAME)
        answer = Converse(question, include_usage=chat.include_usage, names=names.back)
        document = _converse(chat, names)
        headers = dict(question.sent.headers)
        betas = headers.pop(_BETA, "")
        if betas and _is_claude(question.model):
            document["additionalModelRequestFields"] = {"anthropic_beta": betas.split(",")}
        return ProviderCall(path, headers, orjson.dumps(document), answer)

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Implements `Format.repair_question`."""
        del question, error
        return None


def _is_claude(model: str) -> bool:
    return "anthropic." in model or "claude" in model


def _converse(chat: Chat, names: ToolNames) -> dict[str, object]:
    offers = bool(chat.tools) and chat.tool_choice != "none"
    # Converse takes calls and results only beside tools, and has no choice by which the model may not call them.
    turns = without_calls(chat.turns) if not offers and has_calls(chat.turns) else chat.turns
    document: dict[str, object] = {
        "messages": [{"role": turn.role, "content": _blocks(turn, names)} for turn in mended_turns(turns, IDS, _WHO)]
    }
    if chat.system:
        document["system"] = [block for text in chat.system for block in _marked({"text": text.text}, text.cache)]
    inference: dict[str, object] = {
        "maxTokens": chat.max_tokens,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "stopSequences": list(chat.stop) or None,
    }
    inference = {name: value for name, value in inference.items() if value is not None}
    if inference:
        document["inferenceConfig"] = inference
    if offers:
        document["toolConfig"] = _tool_config(chat, names)
    if chat.schema is not None:
        name, schema = chat.schema
        structure = {"jsonSchema": {"schema": orjson.dumps(schema).decode(), "name": name}}
        document["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
    return document


def _tool_config(chat: Chat, names: ToolNames) -> dict[str, object]:
    if not chat.parallel_tool_calls:
        raise unsayable("parallel_tool_calls", _WHO)
    tools = [entry for tool in chat.tools for entry in _marked({"toolSpec": _tool(tool, names)}, tool.cache)]
    config: dict[str, object] = {"tools": tools}
    choice = chat.tool_choice
    if choice == "required":
        config["toolChoice"] = {"any": {}}
    elif choice is not None and choice.startswith("="):
        config["toolChoice"] = {"tool": {"name": names.name_for_provider(choice[1:])}}
    return config


def _tool(tool: Tool, names: ToolNames) -> dict[str, object]:
    entry: dict[str, object] = {"name": names.name_for_provider(tool.name), "inputSchema": {"json": tool.schema}}
    if tool.description is not None:
        entry["description"] = tool.description
    if tool.strict is not None:
        entry["strict"] = tool.strict
    return entry


def _blocks(turn: ChatTurn, names: ToolNames) -> list[dict[str, object]]:
    blocks: list[dict[str, object]] = []
    for part in turn.parts:
        cache = None if isinstance(part, Thought) else part.cache
        blocks += _marked(_block(part, names), cache)
    return blocks


def _marked(block: dict[str, object], cache: CacheMark | None) -> list[dict[str, object]]:
    if cache is None:
        return [block]
    point = {"type": "default", **({"ttl": cache.ttl} if cache.ttl is not None else {})}
    return [block, {"cachePoint": point}]


def _block(part: Part, names: ToolNames) -> dict[str, object]:
    match part:
        case ChatText(text):
            return {"text": text}
        case Image(media_type, data):
            kind = _IMAGES.get(media_type or "")
            if kind is None:
                raise unsayable("messages", _WHO, f"An image must be data of {', '.join(_IMAGES)}, not a URL.")
            return {"image": {"format": kind, "source": {"bytes": data}}}
        case ToolCall(identity, name, arguments):
            return {"toolUse": {"toolUseId": identity, "name": names.name_for_provider(name), "input": arguments}}
        case ToolResult(identity, parts):
            content = [_block(each, names) for each in parts] or [{"text": _NOTHING}]
            return {"toolResult": {"toolUseId": identity, "content": content}}
        case Thought(text, signature, redacted):
            if redacted:
                return {"reasoningContent": {"redactedContent": signature}}
            return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


KIND: Final = ProviderKind(
    "bedrock",
    lambda _: Bedrock(),
    lambda provider: f"https://bedrock-runtime.{provider.region}.amazonaws.com",
    needs=("region",),
    client_headers=(_BETA,),
    cloud="aws",
)
