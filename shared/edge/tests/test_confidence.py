"""The judgement of a cascade about an answer, by the signs that the answer itself gives."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis.answer_signs import AnswerSigns, SignReader, logprob_edits, without_logprobs
from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_contracts.cascade import AnswerConfidence, ConfidenceRule
from pointsman_edge.deciding.confidence import judge_answer


def chat(
    content: object = "Paris.", *, finish: str = "stop", logprobs: list[float] | None = None, **message: object
) -> Any:
    told = None if logprobs is None else {"content": [{"token": "t", "logprob": each} for each in logprobs]}
    choice = {"index": 0, "message": {"content": content, **message}, "finish_reason": finish, "logprobs": told}
    return {"object": "chat.completion", "choices": [choice]}


def signs_of(document: object, api: Api = CHAT) -> AnswerSigns:
    reader = SignReader(api, stream=False)
    reader.read_bytes(json.dumps(document).encode())
    return reader.signs


def judged(document: object, api: Api = CHAT, asked: dict[str, object] | None = None, **rule: Any) -> AnswerConfidence:
    return judge_answer(ConfidenceRule(**rule), api, asked or {}, signs_of(document, api))


CALL: dict[str, Any] = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
BROKEN_CALL: dict[str, Any] = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"a": '}}]}
AS_JSON: dict[str, object] = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("document", "asked", "why"),
    [
        (chat(), {}, ""),
        (chat(""), {}, "no text"),
        (chat(None, finish="length", reasoning_content="I think"), {"max_tokens": 9}, "no text"),
        (chat(None, refusal="No."), {}, "marked as refused"),
        (chat(finish="content_filter"), {}, "marked as refused"),
        (chat(finish="length"), {}, "ended at a limit of tokens"),
        (chat(finish="length"), {"max_completion_tokens": 3}, ""),
        (chat(None, finish="tool_calls", **CALL), {}, ""),
        (chat(None, finish="tool_calls", **BROKEN_CALL), {}, "arguments of a tool aren't JSON"),
        (chat("{}"), AS_JSON, ""),
        (chat("Here you are: {}"), AS_JSON, "not the JSON that was asked for"),
        ({"error": {"message": "no"}}, {}, "the answer is an error, or can't be read"),
        ([], {}, "the answer is an error, or can't be read"),
    ],
)
def test_an_answer_is_judged_by_its_own_signs(document: object, asked: dict[str, object], why: str) -> None:
    found = judged(document, asked=asked)
    assert (found.verdict, found.why) == ("unconfident" if why else "confident", why)


def test_signs_that_a_rule_leaves_out_do_not_count() -> None:
    assert judged(chat(finish="length"), length="never").verdict == "confident"
    assert judged(chat(finish="length"), asked={"max_tokens": 1}, length="always").verdict == "unconfident"
    assert judged(chat(refusal="No."), refusal=False).verdict == "confident"
    assert judged(chat("no"), asked=AS_JSON, form=False).verdict == "confident"


def test_a_phrase_counts_at_the_beginning_whatever_its_case_and_apostrophe() -> None:
    phrases = ("I'm sorry, but I can't",)
    assert judged(chat(" I\u2019M SORRY, but I can't help."), phrases=phrases).verdict == "unconfident"
    assert judged(chat("He said: I'm sorry, but I can't"), phrases=phrases).verdict == "confident"


def test_log_probabilities_count_where_a_rule_asks_and_are_unknown_where_none_came() -> None:
    good, bad = chat(logprobs=[-0.1, -0.3]), chat(logprobs=[-0.1] * 8 + [-9.0])
    assert judged(good, mean_logprob=-0.2).mean_logprob == -0.2
    assert judged(good, mean_logprob=-0.2).verdict == "confident"
    assert judged(bad, mean_logprob=-2).verdict == "confident"
    assert judged(bad, low_logprob=-2).verdict == "unconfident"
    unknown = judged(chat(), mean_logprob=-0.2)
    assert (unknown.verdict, unknown.mean_logprob) == ("unknown", None)


@pytest.mark.parametrize("odd", [None, "-0.1", True, 0.5, -9999.0, float("-inf"), {}, []])
def test_a_log_probability_that_is_none_is_unknown_and_not_zero(odd: object) -> None:
    document = chat(logprobs=[-0.1])
    document["choices"][0]["logprobs"]["content"].append({"logprob": odd})
    known = [each for each in signs_of(document).logprobs if each != -9999.0]
    assert known == [-0.1]


def test_each_api_has_its_own_form() -> None:
    text = {"type": "output_text", "text": "Hi", "logprobs": [{"logprob": -1.0}]}
    response = {"object": "response", "status": "completed", "output": [{"type": "message", "content": [text]}]}
    assert signs_of(response, RESPONSES).logprobs == [-1.0]
    cut = response | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    assert signs_of(cut, RESPONSES).at_limit
    completion = {"choices": [{"text": "Hi", "logprobs": {"token_logprobs": [None, -1.0]}, "finish_reason": "stop"}]}
    assert signs_of(completion, COMPLETIONS).logprobs == [-1.0]
    message = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "refusal"}
    assert signs_of(message, MESSAGES).refused
    assert judged(message | {"stop_reason": "end_turn"}, MESSAGES, mean_logprob=-1).verdict == "unknown"


def test_the_client_gets_log_probabilities_only_where_it_asked() -> None:
    assert logprob_edits(CHAT, {"logprobs": True}) == ()
    assert [edit.field for edit in logprob_edits(CHAT, {"logprobs": False})] == ["logprobs"]
    (edit,) = logprob_edits(RESPONSES, {"include": ["file_search_call.results"]})
    assert edit.value == ["file_search_call.results", "message.output_text.logprobs"]
    assert logprob_edits(MESSAGES, {}) == ()


PIECES = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6)


@given(PIECES, st.lists(st.integers(1, 40), max_size=8))
def test_a_streams_signs_do_not_depend_on_how_it_is_cut(pieces: list[str], cuts: list[int]) -> None:
    events: list[Any] = [
        {"choices": [{"index": 0, "delta": {"content": piece}, "logprobs": {"content": [{"logprob": -1.0}]}}]}
        for piece in pieces
    ]
    ends: list[Any] = [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    whole = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (*events, *ends)) + b"data: [DONE]\n\n"
    reader, at = SignReader(CHAT, stream=True), 0
    for cut in (*cuts, len(whole)):
        reader.read_bytes(whole[at : at + cut])
        at += cut
    assert reader.signs.texts == ["".join(pieces)]
    assert (reader.signs.logprobs, reader.signs.ended) == ([-1.0] * len(pieces), True)
    bare = without_logprobs(whole, stream=True)
    assert b"-1.0" not in bare
    assert without_logprobs(bare, stream=True) == bare
