"""The words, numbers and marks of a text."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pointsman_semantic_cache.domain.gate.marks import computes, is_sign, mark_at

_TOKEN: Final = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.]+"  # address
    r"|https?://\S+"
    r"|(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:st|nd|rd|th)?(?![\w/-]*[/-]\d)(?=[^\w]|[a-zA-Z°%µ]{1,4}\b|_|$)"
    r"|[^\W_]+(?:[._/:#+@-][^\W_]+)*\+{0,2}#?"
    r"|[$€£¥₹¢%°]"
    r"|[^\w\s]|_"  # a mark, or what only separates
)
_SENTENCE: Final = re.compile(r"[.!?:;\n\"“(]\s*$")
_WORD_BEHIND: Final = re.compile(r"\s*\w")
_CURRENCY: Final = frozenset("$€£¥₹¢%°")
_SAID_SHORT: Final = (
    (re.compile(r"\b([Ll])et's\b"), r"\1et"),
    (re.compile(r"\b(what|who|where|when|why|how|that|it|he|she|there|here)'s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"(?<=\w)'s\b"), ""),
    (re.compile(r"(?<=\w)'m\b"), " am"),
    (re.compile(r"(?<=\w)'re\b"), " are"),
    (re.compile(r"(?<=\w)'ll\b"), " will"),
    (re.compile(r"(?<=\w)'ve\b"), " have"),
    (re.compile(r"(?<=\w)'d\b"), " would"),
    (re.compile(r"(?<=[^\W\d_])'(?=[^\W\d_])"), ""),
)
_ASKED_POLITELY: Final = re.compile(
    r"^\W*(?:(?:please|can you|could you|would you|will you)\s+)+(?=[a-z])", re.IGNORECASE
)


_ASKS: Final = frozenset((
    "tell", "show", "give", "explain", "help", "write", "list", "describe", "find", "summarize",
    "summarise", "translate", "make", "create", "provide", "set", "convert", "compare", "calculate", "name", "define",
    "suggest", "recommend", "let",
))  # fmt: skip
"""Verbs that are asked of a model alone."""


class Token(NamedTuple):
    """One of them, as it is written."""

    text: str
    first: bool = False
    """It begins a sentence."""
    after_number: bool = False
    """Nothing but space is between it and a number."""
    marks: bool = False
    """It is a sign, an operator, or a symbol."""
    alone: bool = False
    """No word comes right behind it."""


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text, in their order; a minus before a number is part of it."""
    for pattern, instead in _SAID_SHORT:
        text = pattern.sub(instead, text)
    polite = _ASKED_POLITELY.match(text)
    if polite is not None and _imperative(text[polite.end() :]):
        text = text[polite.end() :]
    previous: re.Match[str] | None = None
    sign = ""
    computing = computes(text)
    for match in _TOKEN.finditer(text):
        found, place = match.group(), match.start()
        if len(found) == 1 and not found.isalnum() and found not in _CURRENCY:
            if is_sign(text, place):
                sign = found
            elif (mark := mark_at(text, place, computing=computing)) is not None:
                yield Token(mark, marks=True)
            continue
        between = text[previous.end() if previous else 0 : place]
        first = previous is None or _SENTENCE.search(between) is not None
        after = previous is not None and previous.group()[-1:].isdigit() and not between.strip()
        yield Token(sign + found, first, after, alone=_WORD_BEHIND.match(text, match.end()) is None)
        sign = ""
        previous = match


def _imperative(text: str) -> bool:
    word = re.match(r"[a-z]+", text, re.IGNORECASE)
    return word is not None and word.group().lower() in _ASKS
