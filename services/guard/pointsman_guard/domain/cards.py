"""Payment card numbers, as people write them.

The issued first digits and their lengths are from ISO/IEC 7812 and the networks' own pages. A digit inside a longer
number, such as a decimal fraction, belongs to that number.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from pointsman_guard.domain.checksums import luhn

_LONG: Final = frozenset(range(16, 20))
_MAESTRO: Final = frozenset(range(12, 20))
_ISSUED: Final[list[tuple[int, int, frozenset[int]]]] = sorted(
    (
        (220000, 220499, _LONG),  # Mir
        (222100, 272099, frozenset((16,))),  # Mastercard
        (300000, 305999, frozenset((14, 16))),  # Diners Club
        (309500, 309599, frozenset((14, 16))),
        (340000, 349999, frozenset((15,))),  # American Express
        (352800, 358999, _LONG),  # JCB
        (360000, 369999, frozenset((14, 16))),  # Diners Club
        (370000, 379999, frozenset((15,))),  # American Express
        (380000, 399999, frozenset((14, 16))),  # Diners Club
        (400000, 499999, frozenset((13, 16, 19))),  # Visa
        (501800, 501899, _MAESTRO),
        (501900, 501999, frozenset((16,))),  # Dankort
        (502000, 502099, _MAESTRO),
        (503800, 503899, _MAESTRO),
        (506099, 506198, frozenset((16, 18, 19))),  # Verve
        (506699, 506778, frozenset((16,))),  # Elo
        (508000, 508999, frozenset((16,))),  # RuPay
        (509000, 509999, frozenset((16,))),  # Elo
        (510000, 559999, frozenset((16,))),  # Mastercard
        (589300, 589399, _MAESTRO),
        (601100, 601199, _LONG),  # Discover
        (606282, 606282, frozenset((16,))),  # Hipercard
        (606985, 608500, frozenset((16,))),  # RuPay
        (620000, 629999, _LONG),  # UnionPay
        (630400, 630499, _MAESTRO),
        (636000, 636999, _LONG),  # InterPayment, Elo
        (644000, 659999, _LONG),  # Discover, RuPay, Troy
        (675900, 675999, _MAESTRO),
        (676100, 676399, _MAESTRO),
        (810000, 817199, _LONG),  # UnionPay
        (860000, 860099, frozenset((16,))),  # UzCard
        (979200, 979299, frozenset((16,))),  # Troy
        (986000, 986099, frozenset((16,))),  # Humo
    )
)
"""First six digits, from and to, and the length of such a number."""
_STARTS: Final = [start for start, _, _ in _ISSUED]
_OF_GOODS: Final = 13
"""The length of shops' bar codes. A tenth of them pass the checks, so old cards of this length need a word that names
them."""

CANDIDATE: Final = r"[0-9](?:[ .\-]{0,3}[0-9]){11,}"
"""Digits that may hold a card number, with separators between the groups."""
_WRITTEN: Final = re.compile(
    r"(?<!\w)(?=[2-9])(?:"
    r"[0-9]{4}(?P<a> {1,2}| ?- ?|\.)[0-9]{4}(?P=a)[0-9]{4}(?P=a)[0-9]{4}(?P<rest>(?P=a)[0-9]{3})?"
    r"|[0-9]{4}(?P<b> {1,2}| ?- ?|\.)[0-9]{6}(?P=b)[0-9]{4,5}"
    r"|[0-9]{6} (?:[0-9]{10}|[0-9]{13})"
    r"|[0-9]{12,19}"
    r")(?!\w)"
)
_GOES_ON_BEFORE: Final = re.compile(r"(?:[0-9][.\-]|(?:^|[^\w.])\.|\+)$")
"""Signs that the digits are the rest of another number: a fraction, an amount with an area code."""
_DECIMAL_COMMA: Final = re.compile(r"(?<![0-9,])[0-9]{1,3},$")
_SEPARATES: Final = frozenset(",;])}\"'")
_GOES_ON_BEHIND: Final = re.compile(r"[.\-][0-9]")
_GROUPS_BEFORE: Final = re.compile(r"(?<!\w)(?:[0-9]{4} ){2,}$")
_GROUPS_BEHIND: Final = re.compile(r"(?: [0-9]{4}){2,}(?!\w)")
_BETWEEN: Final = str.maketrans("", "", " .-")
_GROUP: Final = re.compile(r"[0-9]+")
_LOOK_AROUND: Final = 40
_WORD: Final = re.compile(r"\b(?:cards?|visa|karten?(?:nummer)?|carte|tarjeta|carta|pan)\b", re.IGNORECASE)


def card(text: str) -> bool:
    """Whether these digits may be an issued number: by first digits, length, and Luhn checksum."""
    digits = text.translate(_BETWEEN)
    head = int(digits[:6] or 0)
    _, end, lengths = _ISSUED[max(0, bisect_right(_STARTS, head) - 1)]
    return _STARTS[0] <= head <= end and len(digits) in lengths and len(set(digits)) > 1 and luhn(digits)


def cards(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Places of card numbers in a text, between two places that hold a `CANDIDATE`."""
    place = start
    # One character more: a letter directly after the digits makes them another kind of number.
    while (written := _WRITTEN.search(text, place, end + 1)) is not None:
        until = written.end() if written["rest"] is None else written.start("rest")
        # The digits after sixteen may be a card's last three or the code on its back.
        found = next((to for to in {written.end(), until} if _is_card(text, written.start(), to)), None)
        if found is None:
            # The card may begin with the next group.
            skipped = _GROUP.match(text, written.start())
            place = skipped.end() if skipped is not None else written.end()
        else:
            yield written.start(), found
            place = found


def _is_card(text: str, start: int, end: int) -> bool:
    return card(text[start:end]) and not _inside_number(text, start, end)


def _inside_number(text: str, start: int, end: int) -> bool:
    before, behind = text[max(0, start - _LOOK_AROUND) : start], text[end : end + _LOOK_AROUND]
    if _GOES_ON_BEFORE.search(before) or _GOES_ON_BEHIND.match(behind):
        return True
    if _DECIMAL_COMMA.search(before) and behind.lstrip()[:1] not in _SEPARATES:
        return True
    if end - start == _OF_GOODS and text[start] == "4":
        return not _WORD.search(before)
    # Rows of four-digit numbers, unless they are cards, one after the other.
    row = _GROUPS_BEFORE.search(before)
    if row is not None and not card(before[-20:]):
        return True
    row = _GROUPS_BEHIND.match(behind)
    return " " in text[start:end] and row is not None and not card(behind[:20])
