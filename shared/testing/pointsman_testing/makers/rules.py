# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# Bodies of any form are read here.
"""Rules of the makers' services that no schema has: each a row with its source.

Where the sources are reports, the words of the service's own error stand there.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

Document = dict[str, Any]
Check = Callable[[Document], Iterator[str]]
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_OPENAI_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MARKS: Final = 4


class MakersRule(NamedTuple):
    """One rule."""

    kind: str
    """Of provider: `anthropic`, `bedrock`, `openai` (Azure too) or `vertex`."""
    words: str
    source: str
    broken: Check
    """Where a body breaks it."""


RULES: Final[list[MakersRule]] = []


def _rule(kind: str, words: str, source: str) -> Callable[[Check], Check]:
    """Add a row."""

    def add(check: Check) -> Check:
        RULES.append(MakersRule(kind, words, source, check))
        return check

    return add


def _blocks(document: Document) -> Iterator[tuple[int, str, Document]]:
    for place, message in enumerate(document["messages"]):
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield place, message["role"], block


@_rule(
    "anthropic",
    "text isn't blank",
    "LibreChat-AI/agents #124: text content blocks must contain non-whitespace text",
)
def _anthropic_texts(document: Document) -> Iterator[str]:
    for place, _, block in _blocks(document):
        inner = block.get("content")
        for each in [block, *(inner if isinstance(inner, list) else [])]:
            if each.get("type") == "text" and not each["text"].strip():
                yield f"messages[{place}]"
    system = document.get("system")
    if any(not each["text"].strip() for each in (system if isinstance(system, list) else [])):
        yield "system"


@_rule("anthropic", "ids are of [a-zA-Z0-9_-]", "maximhq/bifrost #5097: tool_use.id: String should match pattern")
def _anthropic_ids(document: Document) -> Iterator[str]:
    for place, _, block in _blocks(document):
        for name in ("id", "tool_use_id"):
            if block.get("type") in ("tool_use", "tool_result") and name in block and not _ID.fullmatch(block[name]):
                yield f"messages[{place}].{name}"


def _unique(ids: list[str]) -> Iterator[str]:
    if len(set(ids)) < len(ids):
        yield f"{len(ids) - len(set(ids))} of {len(ids)} ids"


@_rule("anthropic", "ids of calls are unique", "`tool_use` ids must be unique")
def _anthropic_unique(document: Document) -> Iterator[str]:
    yield from _unique([block["id"] for _, _, block in _blocks(document) if block.get("type") == "tool_use"])


@_rule("anthropic", "the user begins", "docs.anthropic.com, Messages: the first message must use the user role")
@_rule("bedrock", "the user begins", "A conversation must start with a user message")
def _first_role(document: Document) -> Iterator[str]:
    if next((message["role"] for message in document["messages"] if message["role"] != "system"), "") != "user":
        yield "messages[0].role"


@_rule("bedrock", "turns alternate", "A conversation must alternate between user and assistant roles")
def _alternation(document: Document) -> Iterator[str]:
    roles = [message["role"] for message in document["messages"]]
    yield from (f"messages[{at + 1}]" for at in range(len(roles) - 1) if roles[at] == roles[at + 1])


def _pairs(
    document: Document, call: Callable[[Document], str | None], result: Callable[[Document], str | None]
) -> Iterator[str]:
    """Where calls and results don't stand in neighbouring turns, the results at the beginning."""
    waiting: set[str] = set()
    for place, message in enumerate(document["messages"]):
        content = message["content"] if isinstance(message["content"], list) else []
        results = [found for block in content if (found := result(block)) is not None]
        if set(results) != waiting or len(results) != len(waiting):
            yield f"messages[{place}]: results {sorted(results)} for calls {sorted(waiting)}"
        if any(result(block) is None for block in content[: len(results)]):
            yield f"messages[{place}]: something stands before the results"
        waiting = {found for block in content if (found := call(block)) is not None}
    if waiting:
        yield "the last turn has calls"


@_rule(
    "anthropic",
    "results come right after calls",
    "anthropics/claude-code #7929: `tool_use` ids were found without `tool_result` blocks immediately after",
)
def _anthropic_pairs(document: Document) -> Iterator[str]:
    yield from _pairs(
        document,
        lambda block: block["id"] if block.get("type") == "tool_use" else None,
        lambda block: block["tool_use_id"] if block.get("type") == "tool_result" else None,
    )


@_rule(
    "anthropic",
    "the answer's beginning doesn't end in white space",
    "final assistant content cannot end with trailing whitespace",
)
def _anthropic_end(document: Document) -> Iterator[str]:
    for last in document["messages"][-1:]:
        content = last["content"]
        text = content if isinstance(content, str) else content[-1].get("text", "") if content else ""
        if last["role"] == "assistant" and text != text.rstrip():
            yield "the last message"


@_rule("anthropic", "schemas are objects'", "BerriAI/litellm #31527: tools.0.custom.input_schema.type: Field required")
def _anthropic_schemas(document: Document) -> Iterator[str]:
    for place, tool in enumerate(document.get("tools", [])):
        if "input_schema" in tool and tool["input_schema"].get("type") != "object":
            yield f"tools[{place}].input_schema.type"


@_rule(
    "anthropic",
    "names are of [a-zA-Z0-9_-]{1,128}",
    "docs.anthropic.com, Tool use: name must match ^[a-zA-Z0-9_-]{1,128}$",
)
def _anthropic_names(document: Document) -> Iterator[str]:
    names = [tool["name"] for tool in document.get("tools", [])]
    names += [block["name"] for _, _, block in _blocks(document) if block.get("type") == "tool_use"]
    yield from (name for name in names if not _NAME.fullmatch(name))


@_rule(
    "anthropic",
    "a history with calls declares tools",
    "Requests which include `tool_use` or `tool_result` blocks must define tools",
)
def _anthropic_calls(document: Document) -> Iterator[str]:
    if any(block.get("type") == "tool_use" for _, _, block in _blocks(document)) and not document.get("tools"):
        yield "tools"


@_rule("anthropic", "stop sequences aren't blank", "stop_sequences: each stop sequence must contain non-whitespace")
def _anthropic_stops(document: Document) -> Iterator[str]:
    yield from (f"stop_sequences: {word!r}" for word in document.get("stop_sequences", []) if not word.strip())


@_rule("anthropic", "at most four marks", "docs.anthropic.com, Prompt caching: up to 4 cache breakpoints")
def _anthropic_marks(document: Document) -> Iterator[str]:
    system = document.get("system")
    holders = [block for _, _, block in _blocks(document)] + document.get("tools", [])
    holders += system if isinstance(system, list) else []
    if sum(each.get("cache_control") is not None for each in holders) > _MARKS:
        yield "cache_control"


@_rule("anthropic", "thinking is signed", "ding113/claude-code-hub #518: Invalid `signature` in `thinking` block")
def _anthropic_thoughts(document: Document) -> Iterator[str]:
    for place, role, block in _blocks(document):
        if block.get("type") == "thinking" and not (block["signature"] and role == "assistant"):
            yield f"messages[{place}]"


@_rule("anthropic", "messages have content", "all messages must have non-empty content")
@_rule("bedrock", "messages have content", "The content field in the Message object is empty")
def _anthropic_empty(document: Document) -> Iterator[str]:
    yield from (f"messages[{place}]" for place, each in enumerate(document["messages"]) if not each["content"])


@_rule("bedrock", "text isn't blank", "Helicone/helicone #5257: The text field in the ContentBlock object is blank")
def _bedrock_texts(document: Document) -> Iterator[str]:
    for place, _, block in _blocks(document):
        inner = block.get("toolResult", {}).get("content", [])
        if any("text" in each and not each["text"].strip() for each in (block, *inner)):
            yield f"messages[{place}]"
        if "toolResult" in block and not inner:
            yield f"messages[{place}].toolResult.content"
    yield from ("system" for each in document.get("system", []) if "text" in each and not each["text"].strip())


@_rule(
    "bedrock",
    "ids are of [a-zA-Z0-9_-]",
    "vercel/ai #13326: toolUseId must satisfy [a-zA-Z0-9_-]+ (botocore's pattern is wider)",
)
def _bedrock_ids(document: Document) -> Iterator[str]:
    for place, _, block in _blocks(document):
        for held in (block.get("toolUse"), block.get("toolResult")):
            if held is not None and not _ID.fullmatch(held["toolUseId"]):
                yield f"messages[{place}]"


@_rule("bedrock", "ids of calls are unique", "The number of toolResult blocks exceeds the number of toolUse blocks")
def _bedrock_unique(document: Document) -> Iterator[str]:
    yield from _unique([block["toolUse"]["toolUseId"] for _, _, block in _blocks(document) if "toolUse" in block])


@_rule("bedrock", "results come right after calls", "Expected toolResult blocks for the following Ids")
def _bedrock_pairs(document: Document) -> Iterator[str]:
    yield from _pairs(
        document,
        lambda block: block["toolUse"]["toolUseId"] if "toolUse" in block else None,
        lambda block: block["toolResult"]["toolUseId"] if "toolResult" in block else None,
    )


@_rule(
    "bedrock",
    "calls need toolConfig",
    "langgenius/dify #17545: The toolConfig field must be defined when using toolUse and toolResult",
)
def _bedrock_calls(document: Document) -> Iterator[str]:
    used = any("toolUse" in block or "toolResult" in block for _, _, block in _blocks(document))
    if used and "toolConfig" not in document:
        yield "toolConfig"


@_rule(
    "bedrock",
    "schemas are objects'",
    "lidge-jun/opencodex #75: inputSchema.json.type must be one of the following: object",
)
def _bedrock_schemas(document: Document) -> Iterator[str]:
    for place, tool in enumerate(document.get("toolConfig", {}).get("tools", [])):
        if "toolSpec" in tool and tool["toolSpec"]["inputSchema"]["json"].get("type") != "object":
            yield f"toolConfig.tools[{place}]"


def _openai_calls(document: Document) -> Iterator[tuple[int, Document]]:
    for place, message in enumerate(document["messages"]):
        for call in message.get("tool_calls") or []:
            yield place, call


@_rule("openai", "ids have 1 to 40 characters", "BerriAI/litellm #17343: Expected a string with maximum length 40")
def _openai_ids(document: Document) -> Iterator[str]:
    for place, call in _openai_calls(document):
        if not 1 <= len(call["id"]) <= 40:
            yield f"messages[{place}].tool_calls: {call['id']}"


@_rule(
    "openai",
    "results come right after calls",
    "An assistant message with 'tool_calls' must be followed by tool messages",
)
def _openai_pairs(document: Document) -> Iterator[str]:
    waiting: list[str] = []
    for place, message in enumerate(document["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"messages[{place}]: a result without a call"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"messages[{place}]: {len(waiting)} calls without a result"
        waiting = [call["id"] for call in message.get("tool_calls") or []]
    if waiting:
        yield "the last message has calls"


@_rule("openai", "a list of calls isn't empty", "Invalid 'messages[1].tool_calls': empty array")
def _openai_empty_calls(document: Document) -> Iterator[str]:
    yield from (f"messages[{at}]" for at, each in enumerate(document["messages"]) if each.get("tool_calls") == [])


@_rule("openai", "an answer says something", "Invalid value for 'content': expected a string, got null")
def _openai_content(document: Document) -> Iterator[str]:
    for place, message in enumerate(document["messages"]):
        if message["role"] != "assistant" or message.get("tool_calls") or message.get("function_call"):
            continue
        if message.get("content") is None and message.get("refusal") is None and message.get("audio") is None:
            yield f"messages[{place}].content"


@_rule("openai", "names are of [a-zA-Z0-9_-]{1,64}", "Invalid 'tools[0].function.name': string does not match pattern")
def _openai_names(document: Document) -> Iterator[str]:
    names = [tool["function"]["name"] for tool in document.get("tools", []) if "function" in tool]
    yield from (name for name in names if not _OPENAI_NAME.fullmatch(name))


@_rule("vertex", "a call has the signature of its thought", "ai.google.dev/gemini-api/docs/thought-signatures")
def _gemini_signatures(document: Document) -> Iterator[str]:
    if "gemini-3" not in str(document.get("model")):
        return
    for place, message in enumerate(document["messages"]):
        for call in (message.get("tool_calls") or [])[:1]:
            if not call.get("extra_content", {}).get("google", {}).get("thought_signature"):
                yield f"messages[{place}]"


def broken_rules(kind: str, document: Document) -> list[str]:
    """The rules of this kind that a body breaks, and where."""
    return [
        f"{where}: {rule.words} ({rule.source})"
        for rule in RULES
        if rule.kind == kind
        for where in rule.broken(document)
    ]
