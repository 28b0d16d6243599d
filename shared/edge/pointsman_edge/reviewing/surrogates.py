"""Halves of surrogate pairs in answers that stages review: no stage reads a half, so it waits for the other one.

A service that cuts texts by UTF-16 units sends the halves of an emoji in two events.
"""

import re
from collections.abc import Iterable
from typing import Final, cast

from pointsman_apis.answers import slots_of
from pointsman_apis.api import Api
from pointsman_apis.streams import StreamEvent
from pointsman_apis.texts import Answer

_REPLACEMENT: Final = "\ufffd"
_HALF: Final = re.compile("[\ud800-\udfff]")
_FIRST: Final = re.compile("[\ud800-\udbff]$")


def mend(document: Answer) -> None:
    """Put U+FFFD in place of each half in a document that is whole."""
    for name, value in document.items():
        document[name] = _mended(value)


def _mended(value: object) -> object:
    if isinstance(value, str):
        return _HALF.sub(_REPLACEMENT, value)
    if isinstance(value, list):
        return [_mended(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        document = cast("Answer", value)
        mend(document)
        return document
    return value


class Halves:
    """Moves the first half of a pair to the event that has the second one."""

    __slots__ = ("_api", "_waiting")

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: dict[str, str] = {}
        """First halves, by the text that they are part of."""

    def mend_events(self, events: Iterable[StreamEvent]) -> None:
        """Mend the events, in order."""
        for event in events:
            document = event.document
            if document is None or (event.strict and not self._waiting):
                continue
            readable = event.readable  # of what came
            for slot in slots_of(self._api, document):
                text = self._waiting.pop(slot.part, "") + slot.text
                first = _FIRST.search(text)
                if first is not None and not slot.repeats and not slot.complete:
                    self._waiting[slot.part] = first[0]
                    text = text[:-1]
                joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                if readable and joined != slot.text:
                    slot.replace_value(joined)
                    event.changed = True
            if not event.strict:
                mend(document)
