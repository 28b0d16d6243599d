r"""Reads escapes of JSON strings inside texts, and finds the place of each reading in the text as it is written.

Tools are called with JSON, and return JSON; models answer in it. In these texts `\u0040` is an `@` for the program that
reads them, so a detector must see the `@`. Source of the escapes: RFC 8259, section 7.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import orjson

from pointsman_plugins.guarding import CheckedText, Finding

DEPTH: Final = 3
"""JSON inside a string of JSON is read up to this many times."""

_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|[\"\\/bfnrt])"
)
"""An escape that stands for one character; halves of a pair alone stay as they are."""
_SHORT: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Unescaped(NamedTuple):
    """A text with the characters that its escapes stand for."""

    text: str
    starts: Sequence[int]
    """Places in `text`, ascending: from each on, its characters follow each other in the written text."""
    written: Sequence[int]
    """The place in the written text of each of `starts`."""

    def place_of(self, at: int) -> int:
        """The place in the written text of a character of this one."""
        piece = bisect_right(self.starts, at) - 1
        return self.written[piece] + at - self.starts[piece]

    def end_of(self, at: int) -> int:
        """The place in the written text behind the character before `at`."""
        piece = bisect_right(self.starts, at - 1) - 1
        last = self.written[piece] + at - self.starts[piece]
        following = piece + 1
        # An escape is a piece of one character, and is longer where it is written.
        return self.written[following] if following < len(self.starts) and self.starts[following] == at else last


def unescaped(text: str) -> Unescaped | None:
    """The text with its escapes read once; None where it has none."""
    pieces: list[str] = []
    starts: list[int] = []
    written: list[int] = []
    size = place = 0
    for escape in _ESCAPE.finditer(text):
        if place < escape.start():
            starts.append(size)
            written.append(place)
            pieces.append(text[place : escape.start()])
            size += escape.start() - place
        starts.append(size)
        written.append(escape.start())
        pieces.append(_character(escape[0]))
        size += 1
        place = escape.end()
    if not pieces:
        return None
    starts.append(size)
    written.append(place)
    pieces.append(text[place:])
    return Unescaped("".join(pieces), starts, written)


def _character(escape: str) -> str:
    if escape[1] != "u":
        return _SHORT[escape[1]]
    units = bytes.fromhex(escape.replace("\\u", ""))
    return units.decode("utf-16-be")


def is_json(text: str) -> bool:
    """Whether a text is a JSON object or array."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def said(text: str, start: int, end: int) -> str:
    """The value at a place of a text: in JSON, without escapes."""
    value = text[start:end]
    if "\\" not in value or not is_json(text):
        return value
    read = unescaped(value)
    return value if read is None else read.text


class Readings(NamedTuple):
    """The readings of several texts: their own, and those without escapes."""

    texts: Sequence[CheckedText]
    """First one for each text, in their order, then further ones."""
    steps: Sequence[Sequence[Unescaped]]
    """By reading: how it was made from the text as it is written, the last step first; empty for the text itself."""
    of: Sequence[int]
    """By reading: the index of its text."""

    @classmethod
    def all_of(cls, texts: Sequence[CheckedText]) -> Self | None:
        """The readings of texts; None where they are the texts themselves."""
        if not any("\\" in text.text for text in texts):
            return None
        first: list[CheckedText] = []
        steps: list[Sequence[Unescaped]] = []
        further: list[tuple[int, CheckedText, Sequence[Unescaped]]] = []
        for index, text in enumerate(texts):
            levels = list(_levels(text.text))
            own: Sequence[Unescaped] = ()
            if levels and is_json(text.text):
                own = levels.pop(0)
            first.append(text if not own else text._replace(text=own[0].text))
            steps.append(own)
            further += [(index, text._replace(text=level[0].text), level) for level in levels]
        if not further and not any(steps):
            return None
        return cls(
            [*first, *(text for _, text, _ in further)],
            [*steps, *(level for _, _, level in further)],
            [*range(len(texts)), *(index for index, _, _ in further)],
        )

    def place_findings(self, findings: Iterable[Finding]) -> list[Finding]:
        """Findings in these readings, with their places in the texts as they are written."""
        return [finding if finding.at is None else self._placed(finding, finding.at) for finding in findings]

    def _placed(self, finding: Finding, reading: int) -> Finding:
        start, end = finding.start, finding.end
        if finding.located:
            for step in self.steps[reading]:
                start, end = step.place_of(start), step.end_of(end)
        return finding._replace(at=self.of[reading], start=start, end=end)


def _levels(text: str) -> Iterator[Sequence[Unescaped]]:
    steps: tuple[Unescaped, ...] = ()
    for _ in range(DEPTH):
        read = unescaped(text)
        if read is None:
            return
        text, steps = read.text, (read, *steps)
        yield steps
