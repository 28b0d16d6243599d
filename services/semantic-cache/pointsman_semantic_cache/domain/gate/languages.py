"""The language of a text, from its letters and short words."""

from collections.abc import Sequence
from typing import Final

from pointsman_semantic_cache.domain.gate.vocabulary import FUNCTION_WORDS

_SCRIPTS: Final = (
    ("latin", 0x0041, 0x024F), ("greek", 0x0370, 0x03FF), ("cyrillic", 0x0400, 0x052F), ("hebrew", 0x0590, 0x05FF),
    ("arabic", 0x0600, 0x06FF), ("devanagari", 0x0900, 0x097F), ("thai", 0x0E00, 0x0E7F), ("kana", 0x3040, 0x30FF),
    ("han", 0x3400, 0x9FFF), ("hangul", 0xAC00, 0xD7AF),
)  # fmt: skip


def language_of(text: str, words: Sequence[str]) -> str:
    """As `Signature.language`. `words`: of the text, in small letters."""
    counts: dict[str, int] = {}
    for letter in text:
        code = ord(letter)
        if letter.isalpha():
            script = next((name for name, low, high in _SCRIPTS if low <= code <= high), "other")
            counts[script] = counts.get(script, 0) + 1
    script = max(counts, key=lambda name: counts[name]) if counts else ""
    if script != "latin":
        return "kana" if script == "han" and counts.get("kana") else script
    scores = {language: sum(word in listed for word in words) for language, listed in FUNCTION_WORDS.items()}
    best = max(scores, key=lambda language: scores[language])
    others = [score for language, score in scores.items() if language != best]
    return f"latin-{best}" if scores[best] > max(others) else "latin"
