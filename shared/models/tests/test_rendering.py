"""Chats become the text that transformers makes of them with the arguments that vLLM gives it.

The expected texts are what transformers 5.23 (`apply_chat_template`) gave for these messages.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_models.tokenization.chat_template import ChatTemplate
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, ServedTemplate, read_folder
from pointsman_testing.tiny_tokenizer import CHATML, HEADERS, INSTRUCTIONS, PARTS, write_tokenizer

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
    ],
}


def render(folder: Path, template: str, body: Mapping[str, object], served: ServedTemplate | None = None) -> str:
    return PromptTokenizer(read_folder(write_tokenizer(folder, template)), served).render(body.get)


def chat(*contents: str, **fields: object) -> dict[str, object]:
    roles = ("user", "assistant")
    messages = [{"role": roles[turn % 2], "content": content} for turn, content in enumerate(contents)]
    return {"messages": messages, **fields}


def test_headers_stand_before_messages_and_the_answer_is_opened(tmp_path: Path) -> None:
    assert render(tmp_path, HEADERS, chat("Hi <b>&")) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b>&<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.requirement("S4-6")
def test_tools_calls_and_results_are_rendered_as_objects(tmp_path: Path) -> None:
    body = chat("Weather?", tools=[WEATHER])
    body["messages"] = [
        {"role": "user", "content": "Weather?"},
        CALL,
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "21"}, {"type": "text", "text": "°"}],
        },
    ]
    assert render(tmp_path, CHATML, body) == (
        '<|im_start|>system\n# Tools\n<tools>\n{"type": "function", "function": {"name": "weather", '
        '"description": null, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}\n'
        "</tools><|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n21\n°\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("levels", [300, 900, 100_000])
def test_arguments_of_a_call_that_nest_too_deep_break_nothing(tmp_path: Path, levels: int) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * levels + "]" * levels}}
    with suppress(NotTokenized):
        render(tmp_path, CHATML, {"messages": [{"role": "assistant", "tool_calls": [call]}]})


def test_arguments_of_the_template_and_the_effort_reach_it(tmp_path: Path) -> None:
    quiet = "<think>\n\n</think>\n\n"
    told = chat("Hi", chat_template_kwargs={"enable_thinking": False})
    assert render(tmp_path, CHATML, told).endswith(quiet)
    assert render(tmp_path, CHATML, chat("Hi", reasoning_effort="none")).endswith(quiet)
    assert not render(tmp_path, CHATML, chat("Hi", reasoning_effort="low")).endswith(quiet)
    served = ServedTemplate(variables={"enable_thinking": False})
    assert render(tmp_path, CHATML, chat("Hi"), served).endswith(quiet)


def test_documents_reach_the_template(tmp_path: Path) -> None:
    rendered = render(tmp_path, HEADERS, chat("Hi", documents=[{"title": "a", "text": "b"}]))
    assert 'documents<|end_header_id|>\n\n[{"title": "a", "text": "b"}]<|eot_id|>' in rendered


def test_the_answer_is_opened_unless_the_request_says_otherwise(tmp_path: Path) -> None:
    assert render(tmp_path, CHATML, chat("Hi", add_generation_prompt=False)) == "<|im_start|>user\nHi<|im_end|>\n"
    body = chat("Hi", "The train ", continue_final_message=True, add_generation_prompt=False)
    assert render(tmp_path, CHATML, body) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThe train "
    assert render(tmp_path, HEADERS, body).endswith("assistant<|end_header_id|>\n\nThe train")
    assert render(tmp_path, PARTS, body).endswith("assistant<|end_header_id|>\n\nThe train ")
    with pytest.raises(NotTokenized, match="exclude each other"):
        render(tmp_path, CHATML, chat("Hi", "The", continue_final_message=True))


def test_a_template_that_loops_over_parts_gets_parts_and_others_a_text(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    assert "user<|end_header_id|>\n\nab<|eot_id|>" in render(tmp_path, PARTS, body)
    assert "user\na\nb<|im_end|>" in render(tmp_path, CHATML, body)
    assert "a\nb" in render(tmp_path, PARTS, body, ServedTemplate(content_format="string"))
    assert [ChatTemplate(source).content_format for source in (HEADERS, CHATML, INSTRUCTIONS, PARTS)] == [
        "string", "string", "string", "openai",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "wants"),
    [
        ("{% for m in messages[1:] %}{% for c in m.content %}{% endfor %}{% endfor %}", "openai"),
        (
            "{% set rest = messages %}{% for m in rest %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for m in messages %}{% set c = m.content %}{% for part in c %}{% endfor %}{% endfor %}", "string"),
        ("{% for m, n in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", "string"),
        ("{% for m in tools %}{% for c in m.content %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_the_form_of_contents_is_read_off_the_template(template: str, wants: str) -> None:
    assert ChatTemplate(template).content_format == wants


def test_a_conversation_that_the_template_refuses_is_no_text_and_is_not_quoted(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "my secret"}, {"role": "user", "content": "my secret"}]}
    with pytest.raises(NotTokenized) as refused:
        render(tmp_path, INSTRUCTIONS, body)
    assert (refused.value.reason, refused.value.failed) == ("template", True)
    assert "secret" not in str(refused.value)
    with pytest.raises(NotTokenized) as broken:
        render(tmp_path, "{{ messages[0].content + 1 }}", body)
    assert "TypeError" in str(broken.value)
    assert "secret" not in str(broken.value)


def test_a_template_of_the_client_counts_only_where_it_is_trusted(tmp_path: Path) -> None:
    body = chat("Hi", chat_template="{{ messages[0].content }}!")
    with pytest.raises(NotTokenized) as refused:
        render(tmp_path, CHATML, body)
    assert (refused.value.reason, refused.value.failed) == ("template_not_trusted", False)
    assert render(tmp_path, CHATML, body, ServedTemplate(trust_requests=True)) == "Hi!"


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{{ the secret", "TemplateSyntaxError"),
        ("{% secret %}", "TemplateSyntaxError"),
        ("{{ x|secret }}", "TemplateAssertionError"),
        ("{% for x in secret %}" * 25 + "{% endfor %}" * 25, "SyntaxError"),
        ("{{ " + "(" * 5000 + "secret" + ")" * 5000 + " }}", "RecursionError"),
    ],
)
def test_a_template_of_the_client_that_is_none_is_not_quoted(tmp_path: Path, template: str, kind: str) -> None:
    with pytest.raises(NotTokenized) as broken:
        render(tmp_path, CHATML, chat("Hi", chat_template=template), ServedTemplate(trust_requests=True))
    assert broken.value.detail == f"the request's chat template can't be compiled: {kind}"
    assert (broken.value.reason, broken.value.failed) == ("template", True)
    with pytest.raises(NotTokenized, match=r"the chat template can't be compiled: .+") as own:
        render(tmp_path, template, chat("Hi"))
    assert own.value.reason == "template"


def test_a_template_can_neither_change_what_it_is_given_nor_leave_its_sandbox(tmp_path: Path) -> None:
    for source in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception.__globals__.x }}"):
        with pytest.raises(NotTokenized, match="SecurityError"):
            render(tmp_path, source, chat("Hi"))


def test_images_and_what_the_engine_cuts_are_left_to_the_engine(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(read_folder(write_tokenizer(tmp_path)))
    image: dict[str, object] = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}
    for body, reason in (
        (image, "media"),
        (chat("Hi", truncate_prompt_tokens=5), "truncated"),
        (chat("Hi", chat_template_kwargs={"tokenize": True}), "arguments"),
    ):
        with pytest.raises(NotTokenized) as refused:
            tokenizer.tokenize_chat(body.get)
        assert (refused.value.reason, refused.value.failed) == (reason, False)


def test_the_first_token_is_added_to_completions_and_to_chats_that_ask(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(read_folder(write_tokenizer(tmp_path, "{{ messages[0].content }}")))
    first = (0).to_bytes(4, "little")
    plain = tokenizer.tokenize_chat(chat("The train").get)
    assert tokenizer.tokenize_chat(chat("The train", add_special_tokens=True).get) == first + plain
    assert tokenizer.tokenize_completion("The train", chat().get) == first + plain
    assert tokenizer.tokenize_completion("The train", {"add_special_tokens": False}.get) == plain


def test_files_beside_the_tokenizer_go_before_its_configuration(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path, "old")
    (folder / "chat_template.jinja").write_text("usual {{ bos_token }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    tokenizer = PromptTokenizer(read_folder(folder))
    assert tokenizer.render(chat("Hi").get) == "usual <|begin_of_text|>"
    assert tokenizer.render(chat("Hi", tools=[WEATHER]).get) == "with tools"


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path)
    folder = write_tokenizer(tmp_path)
    (folder / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        read_folder(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        read_folder(folder)
    with pytest.raises(NotTokenized, match="can't be compiled"):
        PromptTokenizer(read_folder(write_tokenizer(tmp_path, "{% for %}")))


VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from([None, 4]), st.booleans())
def test_a_template_writes_json_as_python_does_whatever_it_wrote_before(
    values: list[object], indent: int | None, sort_keys: bool
) -> None:
    template = ChatTemplate(f"{{{{ value | tojson(indent={indent}, sort_keys={sort_keys}) }}}}")
    for value in (*values, *values, [1, True, 1.0, None, float("nan")], [1, 1, 1, float("nan"), None]):
        written = json.dumps(value, ensure_ascii=False, indent=indent, sort_keys=sort_keys)
        assert template.render([], variables={"value": value}) == written
