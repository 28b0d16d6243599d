"""Card numbers among other numbers, and what stands in their place."""

import itertools
import json
import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_guard.domain.cards import card, cards
from pointsman_guard.domain.redaction import redacted, removed
from pointsman_guard.plugins.patterns import Patterns, PatternsParams
from pointsman_plugins.guarding import Checked, CheckedText, Finding

PATTERNS: Final = Patterns("patterns", PatternsParams(groups=("pii",)), {})


def found(text: str) -> list[str]:
    """The card numbers in an answer."""
    findings = PATTERNS.detect(Checked("response", "default", "r", [CheckedText("0", "assistant", text)]))
    return [text[finding.start : finding.end] for finding in findings if finding.category == "pii.card"]


def numbered(head: str, size: int) -> str:
    """A number with these first digits that passes Luhn's check."""
    digits = head + "123456789012345678"[: size - len(head) - 1]
    return next(number for last in "0123456789" if card(number := digits + last))


@pytest.mark.parametrize(
    "written",
    [
        "4111111111111111", "4111 1111 1111 1111", "4111-1111-1111-1111", "4111.1111.1111.1111",
        "4111  1111  1111  1111",
        "4111 - 1111 - 1111 - 1111", "3782 822463 10005", "378282246310005", "3056 930902 5904", "2223000048400011",
        "6011111111111117", "3530111333300000", "5555 5555 5555 4444", numbered("62", 19), numbered("2202", 16),
        numbered("6759", 13), numbered("4", 19),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "around",
    ["{}", "My card is {}.", "{}, please", '{{"n": "{}"}}', "({})", "on 12.03.2027 {} 123", "1,{},7", "A {}, B {}"],
)  # fmt: skip
def test_a_card_is_found_however_it_is_written(written: str, around: str) -> None:
    assert found(around.format(written, written)) == [written] * around.count("{}")


@pytest.mark.parametrize(
    "text",
    [
        '{"lat": 52.4111111111111111}', "0.4111111111111111", "-.4111111111111111", "4111111111111111.5",
        "1.4111111111111111e-5",
        "52,4111111111111111 Grad", "+4111111111111111", "12-4111-1111-1111-1111-99", "v2.4111111111111111",
        "4111 11111111 1111", "41 11 11 11 11 11 11 11", "4111, 1111, 1111, 1111", "4111\n1111\n1111\n1111",
        "x4111111111111111", "4111111111111111_", "1111 2222 4111 1111 1111 1111 3333 4444", "EAN 4222222222222",
        "4,111,111,111,111,111", "1700000000000000000", "4111111111111112", "9999999999999995",
    ],
)  # fmt: skip
def test_another_number_or_a_part_of_one_is_no_card(text: str) -> None:
    assert found(text) == []


def test_an_old_card_of_thirteen_digits_needs_a_word_for_it() -> None:
    assert found("my old Visa card 4222222222222") == ["4222222222222"]


def test_ordinary_decimals_are_never_cards() -> None:
    numbers = random.Random(7)
    for _ in range(20_000):
        assert found(json.dumps({"lat": numbers.uniform(-90, 90), "p": numbers.random()})) == []


@given(st.text(alphabet="0123456789 -.,", max_size=80))
def test_whatever_the_digits_what_is_found_is_a_card_that_stands_there(text: str) -> None:
    places = list(cards(text, 0, len(text)))
    assert all(card(text[start:end]) for start, end in places)
    assert places == sorted(places)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(places))


TEXTS = st.text(alphabet='ab0123456789 ":,{}[]\\', max_size=8)
VALUES = st.recursive(
    st.one_of(
        st.integers(10**11, 10**19), st.floats(allow_nan=False, allow_infinity=False), TEXTS, st.none(),
        st.just(4111111111111111), st.just('a: 4111111111111111, "b": 4111111111111111'),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)  # fmt: skip


def digits_in(text: str) -> list[Finding]:
    """Any five digits are what an operator's own pattern may find."""
    return [
        Finding("own.number", "p", 0, at, at + 5) for at in range(0, len(text) - 4, 5) if text[at : at + 5].isdigit()
    ]


@given(
    st.one_of(st.lists(VALUES, max_size=3), st.dictionaries(TEXTS, VALUES, max_size=3)),
    st.sampled_from([None, 1]),
)
def test_json_stays_json_whatever_is_taken_out(document: object, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    findings = digits_in(text)
    json.loads(removed(text, findings))
    json.loads(removed(text, findings, in_json=True))
    json.loads(redacted([CheckedText("messages[0].content", "user", text)], findings).texts.get(0, text))


@given(VALUES, st.data())
def test_a_piece_of_json_joins_its_neighbours_as_json(value: object, data: st.DataObject) -> None:
    """As in a stream: the window begins and ends anywhere, though not within a number."""
    text = json.dumps({"first": "x, 1", "n": value, "last": [1, "y: 2,"]})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    start, end = (cut for cut in cuts)
    while 0 < start < len(text) and text[start] in "0123456789+-.eE":
        start -= 1
    while end < len(text) and text[end - 1 : end + 1].strip("0123456789+-.eE") == "":
        end += 1
    piece = text[start:end]
    at = piece.find("4111111111111111")
    if at >= 0:
        finding = Finding("pii.card", "p", 0, at, at + 16)
        json.loads(text[:start] + removed(piece, [finding], in_json=True) + text[end:])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"n": 4111111111111111}', '{"n": "[CARD]"}'),
        ("[4111111111111111]", '["[CARD]"]'),
        ('{"n": "4111111111111111"}', '{"n": "[CARD]"}'),
        ('Here:\n```json\n{"n": 4111111111111111}\n```', 'Here:\n```json\n{"n": "[CARD]"}\n```'),
        ('{"s": "{\\"n\\": 4111111111111111}"}', '{"s": "{\\"n\\": null}"}'),
        ("card: 4111111111111111, thanks", "card: [CARD], thanks"),
        ("4111111111111111", "[CARD]"),
        ('"n": 4111111111111111', '"n": "[CARD]"'),
    ],
)
def test_a_placeholder_stands_in_quotes_only_where_a_number_of_json_was(text: str, left: str) -> None:
    at = text.index("4111")
    assert removed(text, [Finding("pii.card", "p", 0, at, at + 16)]) == left
