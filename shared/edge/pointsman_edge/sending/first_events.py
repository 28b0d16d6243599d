"""The first events of an engine's stream, until one says something: an error before that has a status of its own."""

from collections.abc import Mapping
from typing import Final

from pointsman_apis.beginning import (
    LEAST_NOISE,
    closes_silently,
    count_noise,
    finishes_silently,
    gives_up,
    may_give_up,
    says_something,
)
from pointsman_apis.streams import EventSplitter, lenient_document
from pointsman_edge.sending.plain_beginning import ERROR_NAME, FAILED_NAME, begins_plainly
from pointsman_providers.reported_error import ProviderError, error_in

MOST_HELD: Final = 65536
"""Bytes that say nothing; a stream that has more of them passes as it is."""
_DONE: Final = b"[DONE]"


class InPlaceOfAnswer(Exception):
    """An error came in place of an answer, with status 200."""

    def __init__(self, error: ProviderError) -> None:
        super().__init__(error.message)
        self.error: Final = error


class FirstEvents:
    """Reads one stream from its first byte."""

    __slots__ = ("_noise", "_size", "_splitter", "finished", "is_empty", "is_given_up")

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._size = self._noise = 0
        self.is_empty = False
        """All that it said is that it is over."""
        self.is_given_up = False
        """All that it said is that its engine ends it for its own sake."""
        self.finished = False
        """A choice ended without a word."""

    @property
    def is_noise(self) -> bool:
        """All that it said is one character, over and over."""
        return self._noise >= LEAST_NOISE

    def feed(self, data: bytes, *, last: bool, past_finish: bool = False) -> bool:
        """Take the next bytes. Returns whether the stream has said something by then, or is too long to be held.
        `past_finish`: noise, and the end of a choice without a word, don't count. Raises InPlaceOfAnswer."""
        if not self._size and begins_plainly(data):
            return True
        self._size += len(data)
        for event in self._splitter.split_one_by_one(data, last=last):
            if not event.data:
                continue
            document = lenient_document(event.data)
            # A search in the bytes is all that an answer costs.
            if (ERROR_NAME in event.data or FAILED_NAME in event.data) and (error := error_in(document)):
                raise InPlaceOfAnswer(error)
            if past_finish and document is not None and self._is_silent(document):
                if self.is_noise:
                    return True
            elif document is None or says_something(document):
                self.is_empty = not self._noise and event.data.strip() == _DONE
                self.is_given_up = document is not None and may_give_up(event.data) and gives_up(document)
                return True
        return self._size > MOST_HELD

    def _is_silent(self, document: Mapping[str, object]) -> bool:
        """Whether an event has no word yet. Notes noise and the end of a choice."""
        noise = count_noise(document)
        self._noise += noise
        if noise:
            return True
        if self._noise:  # too short to be one: it is the answer
            return False
        if finishes_silently(document):
            self.finished = True
            return True
        return closes_silently(document)
