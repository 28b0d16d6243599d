"""Replaces findings in a text by placeholders, and restores them.

Placeholders are numbered in the order of the prompt, so that the same prompt under the same policy always gets the same
ones: a replica that gets an answer can restore them from the client's prompt alone. Texts that stages add to the prompt
have further numbers.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pointsman_guard.domain.escapes import said
from pointsman_guard.domain.json_numbers import in_place
from pointsman_plugins.guarding import CheckedText, Finding

_GLUED: Final = r"[\w.+/=@\-]*"
"""Characters that may continue a redacted value after a placeholder at the end of a window."""


class Redacted(NamedTuple):
    """Texts with placeholders."""

    texts: dict[int, str]
    """The changed texts by index."""
    originals: dict[str, str]
    """The originals by placeholder."""


class _Span(NamedTuple):
    start: int
    end: int
    category: str


_NOTHING: Final[Mapping[str, str]] = {}


def redacted(
    texts: Sequence[CheckedText], findings: Iterable[Finding], before: Mapping[str, str] = _NOTHING
) -> Redacted:
    """Every located finding replaced by `[CARD_1]`; equal values get the same one. `before`: by placeholder, originals
    that have one already."""
    spans = _spans(findings)
    labels: dict[str, str] = {}
    numbers = {(_label_in(placeholder), original): placeholder for placeholder, original in before.items()}
    counts = Counter(label for label, _ in numbers)
    changed: dict[int, str] = {}
    for index in sorted(spans):
        text = texts[index].text
        pieces: list[str] = []
        place = 0
        for span in spans[index]:
            if span.start < place:
                continue  # of the same number of JSON
            original = said(text, span.start, span.end)
            label = labels.get(span.category)
            if label is None:
                label = labels[span.category] = _free_label(span.category, texts)
            placeholder = numbers.get((label, original))
            if placeholder is None:
                counts[label] += 1
                placeholder = numbers[label, original] = f"[{label}_{counts[label]}]"
            instead = in_place(text, span.start, span.end, placeholder, is_json=False)
            pieces += (text[place : instead.start], instead.text)
            place = instead.end
        changed[index] = "".join((*pieces, text[place:]))
    return Redacted(changed, {placeholder: original for (_, original), placeholder in numbers.items()})


def removed(text: str, findings: Iterable[Finding], *, in_json: bool = False) -> str:
    """A text of an answer with each finding replaced by `[CARD]`, which can't be restored. `in_json` as of
    `restored`."""
    place = 0
    pieces: list[str] = []
    for span in next(iter(_spans(findings).values()), ()):
        if span.start < place:
            continue
        instead = in_place(text, span.start, span.end, f"[{_label(span.category)}]", is_json=in_json)
        pieces += (text[place : instead.start], instead.text)
        place = instead.end
    return "".join((*pieces, text[place:]))


def without_leftovers(text: str, categories: Iterable[str]) -> str:
    """A later window, without the rest of a value that a placeholder of an earlier window replaced."""
    labels = "|".join(re.escape(_label(category)) for category in dict.fromkeys(categories))
    return re.sub(rf"(\[(?:{labels})\]\"?){_GLUED}", r"\1", text) if labels else text


def restored(text: str, originals: Mapping[str, str], *, in_json: bool) -> str:
    """The text with originals for placeholders. `in_json`: it is JSON, or a piece of it, and stays so."""
    if "[" not in text:
        return text
    for placeholder, original in originals.items():
        if placeholder in text:
            text = text.replace(placeholder, json.dumps(original, ensure_ascii=False)[1:-1] if in_json else original)
    return text


def is_own(text: str, finding: Finding, originals: Iterable[str], *, first: bool) -> bool:
    """Whether a finding in an answer is the client's own text: a restored value, or in a later window the end of
    one."""
    found = said(text, finding.start, finding.end)
    for original in originals:
        if found == original:
            return True
        if not first and finding.start == 0 and original.endswith(found):
            return True
        at = text.find(original)
        while at >= 0:
            if at <= finding.start and finding.end <= at + len(original):
                return True
            at = text.find(original, at + 1)
    return False


def _spans(findings: Iterable[Finding]) -> dict[int, list[_Span]]:
    """The findings by text, in order, with overlapping ones joined."""
    by_text: dict[int, list[_Span]] = {}
    for finding in findings:
        if finding.located and finding.at is not None:
            by_text.setdefault(finding.at, []).append(_Span(finding.start, finding.end, finding.category))
    for index, spans in by_text.items():
        merged: list[_Span] = []
        for span in sorted(spans):
            if merged and span.start < merged[-1].end:
                merged[-1] = merged[-1]._replace(end=max(merged[-1].end, span.end))
            else:
                merged.append(span)
        by_text[index] = merged
    return by_text


def _label(category: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", category.rpartition(".")[2].upper()).strip("_") or "REMOVED"


def _label_in(placeholder: str) -> str:
    return placeholder[1:].rpartition("_")[0]


def _free_label(category: str, texts: Sequence[CheckedText]) -> str:
    """A placeholder that the prompt doesn't contain."""
    label = _label(category)
    while any(f"[{label}_" in text.text for text in texts):
        label += "_X"
    return label
