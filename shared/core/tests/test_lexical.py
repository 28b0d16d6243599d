"""The likeness of texts by their words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.lexical import PLACES, decode, encode, rarity, similarity, vector

STRENGTHS = {
    "code": "programming, Python, debugging, code review, algorithms",
    "prose": "creative writing, stories, poems, essays, translation",
    "numbers": "mathematics, proofs, statistics, probability",
}


def closest(prompt: str) -> str:
    described = {name: vector(text) for name, text in STRENGTHS.items()}
    weights = rarity(described.values())
    asked = vector(prompt)
    return max(described, key=lambda name: similarity(asked, described[name], weights))


@pytest.mark.parametrize(
    ("prompt", "model"),
    [
        ("Please debug this Python function, the algorithm never ends", "code"),
        ("Write me a short story about a pointsman, then a poem", "prose"),
        ("What's the probability of two sixes? Give a mathematical proof.", "numbers"),
    ],
)
def test_a_prompt_is_closest_to_the_strengths_whose_words_it_has(prompt: str, model: str) -> None:
    assert closest(prompt) == model


def test_texts_without_words_in_common_are_far_apart_and_the_same_text_is_close() -> None:
    weights = rarity([])
    assert abs(similarity(vector("fix my loop"), vector("creative poems"), weights)) < 0.2
    assert similarity(vector("Fix MY loops!"), vector("fix, loops"), weights) == pytest.approx(1.0)
    assert similarity(vector("the and of"), vector("poems"), weights) == 0.0


def test_a_word_of_all_texts_counts_less_than_a_word_of_one() -> None:
    one, other = vector("alpha beta"), vector("alpha gamma")
    weights = rarity([one, other])
    assert similarity(vector("beta"), one, weights) > similarity(vector("alpha"), one, weights)


@given(st.text())
def test_any_text_survives_the_wire(text: str) -> None:
    places = vector(text)
    read = decode(encode(places))
    assert set(read) <= set(places) <= set(range(PLACES))
    if places:
        assert similarity(read, places, rarity([])) > 0.99


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!"])
def test_a_text_that_is_no_vector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(text)
