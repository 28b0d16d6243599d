"""Compares the texts of two answers. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from pointsman_contracts.mirroring import Likeness
from pointsman_contracts.response_stage import AnswerText

COMPARED: Final = 2**16
"""Characters of a text whose words are compared."""
_WORDS: Final = re.compile(r"\w+|[^\w\s]")


def compare_texts(first: Sequence[AnswerText] | None, second: Sequence[AnswerText] | None) -> Likeness | None:
    """How alike two answers are; None if one of them is: it can't be read. Reasoning isn't compared."""
    if first is None or second is None:
        return None
    ours, theirs = _said(first), _said(second)
    calls, other_calls = _calls(first), _calls(second)
    return Likeness(
        same_text=ours == theirs,
        words=round(_common_words(ours, theirs), 4),
        same_calls=calls == other_calls if calls or other_calls else None,
    )


def _said(texts: Iterable[AnswerText]) -> str:
    return "\n".join(text.text for text in texts if text.kind in ("text", "refusal")).strip()


def _calls(texts: Iterable[AnswerText]) -> list[bytes]:
    """The arguments of the calls, in an order of their own: models may call in any."""
    return sorted(_canonical(text.text) for text in texts if text.kind == "arguments")


def _canonical(arguments: str) -> bytes:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONDecodeError:
        return arguments.encode()


def _common_words(first: str, second: str) -> float:
    """Dice's coefficient of the words, each as often as it occurs."""
    ours, theirs = (Counter(_WORDS.findall(text[:COMPARED].casefold())) for text in (first, second))
    all_words = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / all_words if all_words else 1.0
