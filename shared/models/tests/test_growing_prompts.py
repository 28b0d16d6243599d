"""A conversation's next prompt is rendered and tokenized from its addition on, where the template allows that.

Whatever the template reads, the tokens are those of the whole prompt.
"""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.prompt_tokenizer import Memo, PromptTokenizer, read_folder
from pointsman_testing.tiny_tokenizer import CHATML, HEADERS, INSTRUCTIONS, PARTS, write_tokenizer

_OPENING: Final = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
FUNCTION: Final = """{%- macro text_of(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}{{ loop.index }}{{ part.text }}{% endfor %}{% endif %}{{ mark }}{% endmacro %}
{%- for m in messages %}{{ m.role }}{{ text_of(m.content) }}<|im_end|>{% endfor %}"""
STATE: Final = """{%- set last = namespace(tool=none, count=0) %}{%- for m in messages %}
{%- if m.role == 'tool' and last.tool is none %}{{ raise_exception('no call') }}{% endif %}
{%- if m.tool_calls %}{% set last.tool = m.tool_calls[-1].function.name %}{% endif %}
{%- set last.count = last.count + 1 %}{{ last.count }}{{ last.tool }}{{ m.content }}<|im_end|>
{%- endfor %}{{ last.count }}"""
NEIGHBOURS: Final = """{%- for m in messages %}
{%- if loop.first or messages[loop.index0 - 1].role != m.role %}<|im_start|>{{ m.role }}{% endif %}{{ m.content }}
{%- if loop.last or messages[loop.index0 + 1].role != m.role %}<|im_end|>{% endif %}
{%- if loop.nextitem is defined %}{{ loop.nextitem.role }}{% endif %}
{%- if loop.previtem is defined %}{{ loop.previtem.role }}{% endif %}{% endfor %}"""
THINKING: Final = """{%- set ns = namespace(asked=-1) %}
{%- for m in messages[::-1] %}{% if m.role == 'user' and ns.asked < 0 %}
{%- set ns.asked = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.reasoning_content and loop.index0 > ns.asked %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
<|im_end|>{% endfor %}"""
ADDED: Final = {
    "headers": HEADERS, "chatml": CHATML, "instructions": INSTRUCTIONS, "parts": PARTS, "function": FUNCTION,
    "state": STATE, "neighbours": NEIGHBOURS, "thinking": THINKING,
}  # fmt: skip
"""Templates whose passes read only what can be known again."""
WHOLE: Final = {
    "number": "{% for m in messages %}{{ messages | length }}{{ m.content }}<|im_end|>{% endfor %}",
    "end": "{% for m in messages %}{{ messages[-1].role }}{{ m.content }}<|im_end|>{% endfor %}",
    "remaining": "{% for m in messages %}{{ loop.revindex }}{{ m.content }}<|im_end|>{% endfor %}",
    "before the first": "{% for m in messages %}{{ messages[loop.index0 - 1].role }}"
    "{{ m.content }}<|im_end|>{% endfor %}",
    "cycle": "{% for m in messages %}{{ loop.cycle('a', 'b', 'c') }}{{ m.content }}<|im_end|>{% endfor %}",
    "loop itself": "{% macro f(at) %}{{ at.length }}{% endmacro %}"
    "{% for m in messages %}{{ f(loop) }}{{ m.content }}<|im_end|>{% endfor %}",
    "counter": "{% set next = cycler('a', 'b') %}"
    "{% for m in messages %}{{ next.next() }}{{ m.content }}<|im_end|>{% endfor %}",
    "state in a function": "{% set ns = namespace(n=0) %}"
    "{% macro f() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}"
    "{% for m in messages %}{{ f() }}{{ m.content }}<|im_end|>{% endfor %}",
    "backwards": "{% for m in messages[::-1] %}{{ m.content }}<|im_end|>{% endfor %}",
    "within": "{% for n in [1, 2] %}{% for m in messages %}{{ n }}{{ m.content }}<|im_end|>{% endfor %}{% endfor %}",
    "time": "{% for m in messages %}{{ strftime_now('%Y') }}{{ m.content }}<|im_end|>{% endfor %}",
    "block": "{% block all %}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{% endblock %}",
    "break": "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}",
    "no loop": "{{ messages | map(attribute='content') | join('<|im_end|>') }}",
}
"""Templates of which a pass may depend on the end, on how often something ran, or on what the syntax doesn't show."""
TEXTS: Final = ("", "one", "a <|im_end|> b", "ä longer text " * 9)
TURNS: Final = ("user", "answer", "call", "result", "thought", "edit", "drop", "tools", "effort", "open", "same")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PromptTokenizer]:
    sources = {name: source + _OPENING for name, source in (ADDED | WHOLE).items()}
    folders = {name: write_tokenizer(tmp_path_factory.mktemp("t") / "t", source) for name, source in sources.items()}
    return {name: PromptTokenizer(read_folder(folder)) for name, folder in folders.items()}


def next_body(body: dict[str, Any], turn: str, text: str) -> dict[str, Any]:
    """The next request: a new body that shares the objects that stay."""
    messages: list[Any] = list(body["messages"])
    call = {"type": "function", "id": "c", "function": {"name": text or "f", "arguments": '{"x": 1}'}}
    match turn:
        case "user":
            messages.append({"role": "user", "content": text})
        case "answer":
            messages.append({"role": "assistant", "content": text})
        case "call":
            messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        case "result":
            messages.append({"role": "tool", "tool_call_id": "c", "content": text})
        case "thought":
            messages.append({"role": "assistant", "content": "x", "reasoning_content": text})
        case "edit":
            messages[len(messages) // 2] = {"role": "user", "content": text}
        case "drop" if len(messages) > 1:
            messages.pop(len(messages) // 2)
        case "tools":
            return {**body, "tools": [{"type": "function", "function": {"name": text or "f"}}]}
        case "effort":
            return {**body, "chat_template_kwargs": {"mark": text, "enable_thinking": not text}}
        case "open" if messages[-1]["role"] == "assistant":
            return {**body, "add_generation_prompt": bool(text), "continue_final_message": not text}
        case _:
            pass
    return {**body, "messages": messages, "add_generation_prompt": None, "continue_final_message": None}


def tokens(reader: PromptTokenizer, body: dict[str, Any], memo: Memo | None) -> bytes | str:
    try:
        return reader.tokenize_chat(body.get, memo)
    except NotTokenized as error:
        return error.detail


@pytest.mark.parametrize("name", [*ADDED, *WHOLE])
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(turns=st.lists(st.tuples(st.sampled_from(TURNS), st.sampled_from(TEXTS)), min_size=1, max_size=12))
def test_the_tokens_of_a_prompt_are_those_of_the_whole_whatever_was_known(
    readers: dict[str, PromptTokenizer], name: str, turns: list[tuple[str, str]]
) -> None:
    memo: Memo = {}
    reader = readers[name]
    body: dict[str, Any] = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]}
    for turn, text in (("same", ""), *turns):
        body = next_body(body, turn, text)
        assert tokens(reader, body, memo) == tokens(reader, body, None)


@pytest.mark.parametrize("name", [*ADDED, *WHOLE])
def test_only_the_addition_is_rendered_where_the_template_allows_it(
    readers: dict[str, PromptTokenizer], name: str
) -> None:
    memo: Memo = {}
    reader = readers[name]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Which track?"}]}
    for turn in ("answer", "user", "answer"):
        body = next_body(body, turn, "The left one.")
        assert isinstance(tokens(reader, body, memo), bytes)
    assert reader.has_added(memo) is (name in ADDED)


def test_thoughts_of_earlier_turns_are_left_out_once_the_user_asks_again(readers: dict[str, PromptTokenizer]) -> None:
    memo: Memo = {}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Which track?"}]}
    for turn, added in (("thought", False), ("result", True), ("thought", True), ("user", False), ("answer", True)):
        body = next_body(body, turn, "hm")
        assert tokens(readers["thinking"], body, memo) == tokens(readers["thinking"], body, None)
        assert readers["thinking"].has_added(memo) is added


def test_tokens_behind_a_known_text_are_the_only_ones_that_are_made(readers: dict[str, PromptTokenizer]) -> None:
    memo: Memo = {}
    encoder = readers["chatml"].encoder
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Which track? " * 400}]}
    tokens(readers["chatml"], body, memo)
    body = next_body(next_body(body, "answer", "The left one."), "user", "Why?")
    looked_up = encoder.hits + encoder.misses
    tokens(readers["chatml"], body, memo)
    assert encoder.hits + encoder.misses - looked_up < 400
