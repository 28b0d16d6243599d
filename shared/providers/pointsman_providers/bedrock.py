"""AWS Bedrock's Converse (https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html)."""

from typing import Final
from urllib.parse import quote

import orjson

from pointsman_apis.chat import CHAT
from pointsman_providers.bedrock_answer import Converse
from pointsman_providers.chat_messages import ChatText, Image, Part, ToolCall, ToolResult, unsayable
from pointsman_providers.chat_request import Chat, Tool, read_chat
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import unsupported

_APIS: Final = (CHAT.name,)
_WHO: Final = "AWS Bedrock"
_IMAGES: Final = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}


class Bedrock:
    """The format."""

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """As `Format.call`."""
        if question.api not in _APIS:
            raise unsupported(question.api, _WHO, _APIS)
        chat = read_chat(question.body, _WHO)
        if chat.effort is not None:
            raise unsayable("reasoning_effort", _WHO)
        operation = "converse-stream" if chat.stream else "converse"
        path = f"/model/{quote(question.model, safe='')}/{operation}"
        answer = Converse(question, include_usage=chat.include_usage)
        return ProviderCall(path, {}, orjson.dumps(_converse(chat)), answer)


def _converse(chat: Chat) -> dict[str, object]:
    document: dict[str, object] = {
        "messages": [{"role": turn.role, "content": [_block(part) for part in turn.parts]} for turn in chat.turns]
    }
    if chat.system:
        document["system"] = [{"text": text} for text in chat.system]
    inference: dict[str, object] = {
        "maxTokens": chat.max_tokens,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "stopSequences": list(chat.stop) or None,
    }
    inference = {name: value for name, value in inference.items() if value is not None}
    if inference:
        document["inferenceConfig"] = inference
    if chat.tools and chat.tool_choice != "none":
        document["toolConfig"] = _tool_config(chat)
    elif any(isinstance(part, ToolCall | ToolResult) for turn in chat.turns for part in turn.parts):
        raise unsayable(
            "tools" if not chat.tools else "tool_choice", _WHO, "A conversation with tool calls has to name its tools."
        )
    if chat.schema is not None:
        name, schema = chat.schema
        structure = {"jsonSchema": {"schema": orjson.dumps(schema).decode(), "name": name}}
        document["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
    return document


def _tool_config(chat: Chat) -> dict[str, object]:
    if not chat.parallel_tool_calls:
        raise unsayable("parallel_tool_calls", _WHO)
    config: dict[str, object] = {"tools": [{"toolSpec": _tool(tool)} for tool in chat.tools]}
    choice = chat.tool_choice
    if choice == "required":
        config["toolChoice"] = {"any": {}}
    elif choice is not None and choice.startswith("="):
        config["toolChoice"] = {"tool": {"name": choice[1:]}}
    return config


def _tool(tool: Tool) -> dict[str, object]:
    entry: dict[str, object] = {"name": tool.name, "inputSchema": {"json": tool.schema}}
    if tool.description is not None:
        entry["description"] = tool.description
    if tool.strict is not None:
        entry["strict"] = tool.strict
    return entry


def _block(part: Part) -> dict[str, object]:
    match part:
        case ChatText(text):
            return {"text": text}
        case Image(media_type, data):
            kind = _IMAGES.get(media_type or "")
            if kind is None:
                raise unsayable("messages", _WHO, f"An image must be data of {', '.join(_IMAGES)}, not a URL.")
            return {"image": {"format": kind, "source": {"bytes": data}}}
        case ToolCall(identity, name, arguments):
            return {"toolUse": {"toolUseId": identity, "name": name, "input": arguments}}
        case ToolResult(identity, parts):
            return {"toolResult": {"toolUseId": identity, "content": [_block(each) for each in parts]}}


KIND: Final = ProviderKind(
    "bedrock",
    lambda _: Bedrock(),
    lambda provider: f"https://bedrock-runtime.{provider.region}.amazonaws.com",
    needs=("region",),
    cloud="aws",
)
