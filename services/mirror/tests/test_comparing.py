"""Laws of comparisons."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.mirroring import Likeness
from pointsman_contracts.response_stage import AnswerText
from pointsman_mirror.domain.comparing import compare_texts

_KINDS = st.sampled_from(["text", "reasoning", "refusal", "arguments", "other"])
_ANSWERS = st.lists(st.tuples(_KINDS, st.text(max_size=12)), max_size=5)


def texts(answer: list[tuple[str, str]]) -> tuple[AnswerText, ...]:
    return tuple(AnswerText(part=str(place), kind=kind, text=text) for place, (kind, text) in enumerate(answer))


def likeness(one: tuple[AnswerText, ...], other: tuple[AnswerText, ...]) -> Likeness:
    found = compare_texts(one, other)
    assert found is not None
    return found


@given(_ANSWERS)
def test_an_answer_is_like_itself(answer: list[tuple[str, str]]) -> None:
    found = likeness(texts(answer), texts(answer))
    assert (found.same_text, found.words) == (True, 1.0)
    assert found.same_calls in (True, None)


@given(_ANSWERS, _ANSWERS)
def test_a_comparison_is_the_same_both_ways_and_bounded(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    found = likeness(texts(one), texts(other))
    assert found == likeness(texts(other), texts(one))
    assert 0.0 <= found.words <= 1.0


@given(_ANSWERS)
def test_what_cant_be_read_is_unknown(answer: list[tuple[str, str]]) -> None:
    assert compare_texts(None, texts(answer)) is None
    assert compare_texts(texts(answer), None) is None


def test_calls_are_compared_as_json_in_any_order() -> None:
    one = texts([("arguments", '{"a": 1, "b": 2}'), ("arguments", '{"c": 3}')])
    other = texts([("arguments", '{"c":3}'), ("arguments", '{"b":2,"a":1}')])
    assert likeness(one, other).same_calls is True
    assert likeness(one, texts([("arguments", '{"c": 3}')])).same_calls is False
    assert likeness(one, texts([("text", "Hi")])).same_calls is False
    assert likeness(texts([("text", "Hi")]), texts([("text", "Ho")])).same_calls is None


def test_words_in_common_count_as_often_as_they_occur() -> None:
    one, other = texts([("text", "a a b c")]), texts([("text", "A b d e")])
    assert likeness(one, other).words == 0.5
