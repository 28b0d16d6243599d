"""Folding, redaction, policies and texts of prompts, as values."""

from typing import Final, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_core.config import ConfigError, load
from pointsman_guard.adapters.reach import Reach
from pointsman_guard.configuration import check, compile_all
from pointsman_guard.domain.cards import card
from pointsman_guard.domain.checksums import dni, iban, luhn, ssn
from pointsman_guard.domain.decoding import Work, hidden
from pointsman_guard.domain.folding import fold, offsets
from pointsman_guard.domain.prompt import GuardedPrompt
from pointsman_guard.domain.redaction import is_own, redacted, removed, restored
from pointsman_plugins.guarding import CheckedText, Finding

HARMLESS: Final = st.text(max_size=60)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_every_folded_character_leads_back_to_where_it_came_from(text: str) -> None:
    folded = fold(text)
    assert fold(folded) == fold(fold(folded))
    places = offsets(text)
    assert places == sorted(places)
    assert places[-1] == len(text)


@settings(max_examples=60, deadline=None)
@given(st.lists(HARMLESS, min_size=1, max_size=4), st.data())
def test_redacted_text_comes_back_as_it_was(texts: list[str], data: st.DataObject) -> None:
    said = [CheckedText(str(number), "user", text) for number, text in enumerate(texts)]
    findings: list[Finding] = []
    for at, text in enumerate(texts):
        if text:
            start = data.draw(st.integers(0, len(text) - 1))
            findings.append(Finding("pii.card", "p", at, start, data.draw(st.integers(start + 1, len(text)))))
    result = redacted(said, findings)
    for at, text in enumerate(texts):
        changed = result.texts.get(at, text)
        assert restored(changed, result.originals, in_json=False) == text
    # A request that is sent again gets the same placeholders.
    assert redacted(said, findings) == result


def test_placeholders_that_the_prompt_has_itself_are_not_taken_for_ours() -> None:
    texts = [CheckedText("0", "user", "[EMAIL_1] is what I call a@b.co")]
    result = redacted(texts, [Finding("pii.email", "p", 0, 25, 31)])
    assert result.texts[0] == "[EMAIL_1] is what I call [EMAIL_X_1]"


def test_findings_that_overlap_are_taken_out_once() -> None:
    text = "call 4111 1111 1111 1111"
    findings = [Finding("pii.phone", "p", 0, 5, 14), Finding("pii.card", "p", 0, 5, len(text))]
    assert removed(text, findings).startswith("call [")
    assert "1111" not in removed(text, findings)
    # One that lies inside another takes nothing of it back.
    inside = [Finding("pii.card", "p", 0, 5, len(text)), Finding("pii.phone", "p", 0, 10, 14)]
    assert removed(text, inside) == "call [CARD]"


@pytest.mark.parametrize("original", ["a@b.co", 'Ann "the knife" Lee', "C:\\new\nline", "\u00e9\u2028"])
def test_text_put_back_into_json_leaves_it_json(original: str) -> None:
    originals = {"[NAME_1]": original}
    arguments = restored('{"to":"[NAME_1]","n":[1]}', originals, in_json=True)
    assert orjson.loads(arguments) == {"to": original, "n": [1]}
    assert restored("for [NAME_1].", originals, in_json=False) == f"for {original}."


def test_only_what_the_client_said_itself_may_stand_in_its_answer() -> None:
    text = "a@b.co and c@d.co"
    own, other = Finding("pii.email", "p", 0, 0, 6), Finding("pii.email", "p", 0, 11, 17)
    assert is_own(text, own, ["a@b.co"], first=True)
    assert not is_own(text, other, ["a@b.co"], first=True)
    assert is_own("b.co and", Finding("pii.email", "p", 0, 0, 4), ["a@b.co"], first=False)
    assert not is_own("b.co and", Finding("pii.email", "p", 0, 0, 4), ["a@b.co"], first=True)
    assert not is_own("to b.co", Finding("pii.email", "p", 0, 3, 7), ["a@b.co"], first=False)
    assert is_own("a@b.co, a@b.co", Finding("pii.host", "p", 0, 10, 14), ["a@b.co"], first=True)
    assert not is_own("a@b.co.uk", Finding("pii.email", "p", 0, 0, 9), ["a@b.co"], first=True)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (card, "4111-1111-1111-1111", "4111-1111-1111-1112"),
        (card, "378282246310005", "1234567812345670"),
        (card, "4222222222222", "400000000000006"),
        (card, "340000000000009", "3400000000000000"),
        (card, "5100000000000008", "510000000000003"),
        (card, "2720000000000005", "2721000000000004"),
        (card, "30000000000004", "300000000000007"),
        (iban, "NL91 ABNA 0417 1643 00", "NL92 ABNA 0417 1643 00"),
        (iban, "FR14 2004 1010 0505 0001 3M02 606", "FR13 2004 1010 0505 0001 3M02 606"),
        (iban, "GB82 WEST 1234 5698 7654 32", "GB82 WEST 1234 5698 7654 33"),
        (iban, "de89370400440532013000", "DE8937040044053201300"),
        (ssn, "536-90-4399", "000-12-3456"),
        (ssn, "665-01-0001", "666-01-0001"),
        (ssn, "899-01-0001", "900-01-0001"),
        (ssn, "536-01-4399", "536-00-4399"),
        (ssn, "536-90-0001", "536-90-0000"),
        (ssn, "078-05-1121", "078-05-1120"),
        (dni, "12345678Z", "12345678A"),
        (dni, "12345678-z", "12345678ZZ"),
        (luhn, "79927398713", "79927398710"),
    ],
)
def test_numbers_must_prove_themselves(check: object, right: str, wrong: str) -> None:
    passes = cast("type[bool]", check)
    assert passes(right)
    assert not passes(wrong)


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="abcAB01+/=-_%&#x;\\u{} \n", max_size=400))
def test_nothing_that_looks_encoded_breaks_the_decoder(text: str) -> None:
    assert all(isinstance(found, str) for found in hidden(text, Work()))


EVERYTHING: Final[dict[str, tuple[object, set[tuple[str, str]]]]] = {
    "chat": (
        {
            "messages": [
                {"role": "developer", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {}}]},
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "a"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "t"},
            ],
            "tools": [{"type": "function", "function": {"name": "n", "description": "d"}}],
        },
        {
            ("system", "s"),
            ("user", "u"),
            *(("assistant", text) for text in "af"),
            *(("tool", text) for text in "tdn"),
        },
    ),
    "completions": ({"prompt": ["p", "q"], "suffix": "r"}, {("user", "p"), ("user", "q"), ("user", "r")}),
    "responses": (
        {
            "instructions": "s",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
                {"type": "function_call_output", "call_id": "1", "output": "t"},
            ],
        },
        {("system", "s"), ("user", "u"), ("tool", "t")},
    ),
    "messages": (
        {
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "t"}]}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"q": "a"}}]},
            ],
        },
        {("system", "s"), ("tool", "t"), ("assistant", "a"), ("assistant", "f")},
    ),
    "embeddings": ({"input": "e"}, {("user", "e")}),
    "documents": (
        {
            "messages": [
                {"role": "user", "content": [
                    {"type": "document", "title": "n", "source": {"type": "text", "media_type": "-", "data": "t"}},
                    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "c"}]}},
                ]},
            ],
            "documents": [{"id": "i", "title": "h", "data": "d", "url": "l"}],
        },
        {("tool", text) for text in "ntchdli"},
    ),
    "values of a tool's input": (
        {"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "-", "name": "f", "input": {"type": "b", "data": "d", "url": "u", "id": "i"}},
        ]}]},
        {("assistant", text) for text in "fbdui"},
    ),
    "properties of a tool": (
        {"tools": [{"type": "function", "function": {"name": "n", "parameters": {"type": "object", "properties": {
            "url": {"type": "string", "description": "u", "format": "w"},
            "type": {"type": "string", "enum": ["e"]},
            "data": {"type": "array", "items": {"description": "d"}},
        }}}}]},
        {("tool", text) for text in "nuwed"},
    ),
    "the form of an answer": (
        {
            "messages": [{"role": "user", "content": "u"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
                "type": "object", "description": "d", "properties": {"url": {"type": "string", "enum": ["e"]}},
            }}},
            "text": {"format": {"type": "json_schema", "schema": {"description": "t"}}},
            "chat_template": "c",
            "chat_template_kwargs": {"type": "k"},
        },
        {("user", "u"), *(("system", text) for text in "ndetck")},
    ),
    "a part that nobody knows": (
        {"messages": [{"role": "user", "content": [{"type": "new", "id": "i", "data": {"url": "u"}}, {"url": "v"}]}]},
        {("user", text) for text in ("new", "i", "u", "v")},
    ),
    "a role that nobody knows": (
        {"messages": [{"role": "r", "content": "c"}]}, {("user", "r"), ("user", "c")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", EVERYTHING)
def test_every_text_of_every_api_is_read_with_its_role(api: str) -> None:
    body, expected = EVERYTHING[api]
    prompt = GuardedPrompt.from_body(orjson.dumps(body))
    assert {(text.role, text.text) for text in prompt.list_texts} == expected
    for slot in prompt.slots:
        slot.replace_text("new")
    assert {text.text for text in GuardedPrompt.from_body(orjson.dumps(prompt.document)).list_texts} == {"new"}


def user(*parts: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("body", "category"),
    [
        ({"prompt": [[1, 2], "x"]}, "unreadable.tokens"),
        ({"prompt": "", "prompt_embeds": "QUJD"}, "unreadable.tokens"),
        (user({"type": "prompt_embeds", "data": "QUJD"}), "unreadable.tokens"),
        ({"messages": [], "nvext": {"token_data": [1, 2]}}, "unreadable.tokens"),
        (user({"type": "image", "source": {"type": "base64", "data": "QUJD"}}), "unreadable.media"),
        (user({"type": "document", "source": {"type": "base64", "data": "QUJD"}}), "unreadable.media"),
        (user({"type": "document", "source": {"type": "url", "url": "https://host/a.pdf"}}), "unreadable.media"),
        (user({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,QUJD"}}), "unreadable.media"),
        (user({"type": "image_embeds", "image_embeds": "QUJD"}), "unreadable.media"),
        (user({"image_url": "data:image/png;base64,QUJD"}), "unreadable.media"),
    ],
)
def test_unreadable_input_is_reported(body: object, category: str) -> None:
    assert [each.category for each in GuardedPrompt.from_body(orjson.dumps(body)).unreadable] == [category]


def test_readable_parts_are_not_reported_and_a_prompt_is_an_object() -> None:
    for fine in (
        {"prompt": "", "prompt_embeds": None, "nvext": {"greed": 1}},
        user({"type": "document", "source": {"type": "text", "data": "t"}}),
        {"tools": [{"type": "function", "function": {"parameters": {"image_url": {"type": "image"}}}}]},
    ):
        assert not GuardedPrompt.from_body(orjson.dumps(fine)).unreadable
    with pytest.raises(ValueError, match="not a JSON object"):
        GuardedPrompt.from_body(b"[]")


def guards(**policies: object) -> dict[str, object]:
    return {"guards": policies}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (guards(a={"detectors": ["paterns"]}), "did you mean 'patterns'"),
        (guards(a={"detectors": [{"use": "patterns", "patterns": {"x": ["("]}}]}), "an expression is invalid"),
        (guards(a={"detectors": []}), "at least 1"),
        (guards(a={"actions": {"pii": "mask"}}), "'block', 'redact', 'flag' or 'ignore'"),
        (guards(a={"action": {}}), "did you mean 'actions'"),
    ],
)
def test_a_guard_that_can_not_work_is_refused_in_words(document: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=r"guards\.a") as refused:
        check(load(document))
    assert problem in str(refused.value)


def test_every_change_of_a_policy_is_another_epoch_and_the_same_policy_the_same() -> None:
    def epoch(**policies: object) -> str:
        return compile_all(load(guards(**policies)), Reach(1))["default"].epoch

    first = epoch(a={"actions": {"pii": "block"}})
    assert first == epoch(a={"actions": {"pii": "block"}})
    assert len({first, epoch(), epoch(a={}), epoch(a={"restore": True})}) == 4
