"""Bodies of Messages and Responses become the chats that vLLM makes of them before it renders a template.

The expected chats are those of vLLM 0.32 (`to_chat_completion_request`, `construct_input_messages`). 3,000 generated
bodies gave the same there and here, or were refused there.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pointsman_models.tokenization.chat_template import ChatTemplate
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.known_values import KnownValues
from pointsman_models.tokenization.messages_form import MessagesForm
from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, read_folder
from pointsman_models.tokenization.responses_form import read_responses_body
from pointsman_testing.agent_forms import claude_code, codex
from pointsman_testing.tiny_tokenizer import CHATML, HEADERS, write_tokenizer

SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


def of_messages(body: Mapping[str, Any], template: str = CHATML) -> dict[str, Any]:
    return MessagesForm([ChatTemplate(template)]).read_body(body.get, KnownValues())


def of_responses(body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(read_responses_body(body.get, KnownValues()))


def blocks(*given: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(given)}]}


def test_tool_results_stand_before_the_text_beside_them() -> None:
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": part} for part in "ab"],
    }
    chat = of_messages(blocks(result, {"type": "text", "text": "and now?"}))["messages"]
    assert chat == [
        {"role": "tool", "tool_call_id": "t", "content": "a\nb"}, {"role": "user", "content": "and now?"},
    ]  # fmt: skip
    assert [each["role"] for each in of_messages(blocks(result))["messages"]] == ["tool"]


def test_calls_and_thinking_are_part_of_the_answer() -> None:
    answer = blocks(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "z"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t", "name": "ls", "input": {"path": "."}},
        role="assistant",
    )
    call = {"id": "t", "function": {"arguments": {"path": "."}, "name": "ls"}, "type": "function"}
    assert of_messages(answer)["messages"] == [
        {"role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "I look."}
    ]


def test_the_line_that_differs_with_every_request_is_left_out() -> None:
    system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={n};"} for n in (1, 2)]
    body = {**blocks({"type": "text", "text": "hi"}), "system": [*system, {"type": "text", "text": "Be brief."}]}
    assert of_messages(body)["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("template", "roles"), [(CHATML, ["system", "user", "system"]), (SYSTEM_FIRST, ["system", "user"])]
)
def test_later_system_messages_become_part_of_the_first_where_the_template_asks_for_it(
    template: str, roles: list[str]
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "Remember."}]
    chat = of_messages({"system": "Be brief.", "messages": messages}, template)["messages"]
    assert [each["role"] for each in chat] == roles
    assert "".join(each["content"] for each in chat if each["role"] == "system") == "Be brief.Remember."


def test_tools_that_messages_add_and_remove_count_at_the_end() -> None:
    tools: list[Any] = [{"name": name, "input_schema": {}, "defer_loading": True} for name in "ab"]
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "a"}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "b"}}
    body = {"messages": [{"role": "system", "content": [change, gone]}], "tools": tools}
    function = {"name": "a", "description": None, "parameters": {"type": "object"}}
    assert of_messages(body)["tools"] == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("thinking", "template", "effort"),
    [
        ({"type": "adaptive"}, CHATML, "high"),
        ({"type": "disabled"}, "{{ reasoning_effort }}", "none"),
        ({"type": "disabled"}, "the same for all", "low"),
    ],
)
def test_the_effort_is_the_one_that_the_template_knows(thinking: dict[str, str], template: str, effort: str) -> None:
    body = {**blocks({"type": "text", "text": "hi"}), "thinking": thinking, "output_config": {"effort": "high"}}
    assert of_messages(body, template)["reasoning_effort"] == effort


def test_items_of_one_answer_become_one_message() -> None:
    given: list[Any] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "ls", "namespace": "fs", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "+"},
        {"type": "function_call_output", "call_id": "c", "output": "README"},
    ]
    calls = [
        {"id": "c", "function": {"name": "fs__ls", "arguments": "{}"}, "type": "function"},
        {"id": "d", "function": {"name": "patch", "arguments": {"input": "+"}}, "type": "function"},
    ]
    assert of_responses({"input": given, "instructions": "Be brief."})["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "reasoning": "hm", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "README", "tool_call_id": "c"},
    ]


def test_only_tools_that_a_model_can_call_are_shown() -> None:
    tools: list[Any] = [
        {"type": "web_search_preview"},
        {"type": "function", "name": "f", "parameters": None, "strict": False},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g", "parameters": {}}]},
        {"type": "custom", "name": "h"},
    ]
    made: Any = of_responses({"input": "hi", "tools": tools})["tools"]
    assert [tool["function"]["name"] for tool in made] == ["f", "n__g", "h"]
    assert [*made[0]["function"]] == ["name", "description", "parameters", "strict"]


def test_an_open_answer_goes_on() -> None:
    item = {"type": "message", "role": "assistant", "status": "incomplete", "content": "The points"}
    chat = of_responses({"input": [item]})
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)


@pytest.mark.parametrize(
    ("read", "body", "reason"),
    [
        (of_messages, blocks({"type": "image", "source": {}}), "media"),
        (of_messages, blocks({"type": "tool_result", "content": [{"type": "image"}]}), "media"),
        (of_messages, blocks({"type": "unheard_of"}), "shape"),
        (of_messages, {"messages": ["hi"]}, "shape"),
        (of_responses, {"previous_response_id": "r", "input": "hi"}, "stored"),
        (of_responses, {"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "shape"),
        (of_responses, {"input": [{"type": "item_reference", "id": "i"}]}, "shape"),
    ],
)  # fmt: skip
def test_a_body_whose_form_isnt_known_is_left_to_the_engine(
    read: Callable[[Any], object], body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotTokenized) as caught:
        read(body)
    assert caught.value.reason == reason


def test_responses_have_the_special_tokens_of_the_tokenizer_too(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(read_folder(write_tokenizer(tmp_path, HEADERS)))
    begin = tokenizer.encoder.encode_text("<|begin_of_text|>")
    chat = tokenizer.tokenize_chat({"messages": [{"role": "user", "content": "Which track?"}]}.get)
    assert chat.startswith(begin)
    assert tokenizer.tokenize_response({"input": "Which track?"}.get) == begin + chat


def test_the_next_turn_of_an_agent_begins_with_the_tokens_of_the_one_before(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(read_folder(write_tokenizer(tmp_path, CHATML)))
    first, later = claude_code("m").body, claude_code("m").body
    later["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": "One file."}]},
        {"role": "user", "content": [{"type": "text", "text": "Read it.", "cache_control": {"type": "ephemeral"}}]},
    ]
    opening = tokenizer.encoder.encode_text("<|im_start|>assistant\n")
    before = tokenizer.tokenize_messages(first.get)
    assert tokenizer.tokenize_messages(later.get).startswith(before.removesuffix(opening))
    first, later = codex("m").body, codex("m").body
    for body in (first, later):
        body["input"] = [item for item in body["input"] if item.get("type") != "reasoning"]
    later["input"].append({"type": "message", "role": "assistant", "content": "One file."})
    before = tokenizer.tokenize_response(first.get)
    assert tokenizer.tokenize_response(later.get).startswith(before.removesuffix(opening))
