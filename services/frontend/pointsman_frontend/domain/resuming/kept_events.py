"""The events of a stream that passes, kept in case it breaks off.

A stream that isn't cut must cost next to nothing. Its last events are kept as they came, and nothing is read in them
before it breaks off.
"""

from array import array
from collections import deque
from typing import Final, Protocol

from pointsman_apis.token_ids import (
    LIST,
    NO_LIST,
    cut_ids,
    cut_prompt,
    is_flat,
    read_ids,
    without_ids,
    without_others,
)
from pointsman_frontend.domain.resuming.passed_stream import PassedStream, all_have_ids

RECENT: Final = 32
"""Pieces that are kept as they came, at least: the points at which the answer can be continued lie in them."""
_FOLDED: Final = 4 * RECENT
"""Lists of ids that become numbers at once, which takes less time than one by one."""
_UNCHECKED: Final = 4
_LARGE: Final = 65536
"""A piece of more bytes is read at once."""
_USUAL_END: Final = b"}]}\n\n"
"""Of an event, behind its token ids."""
_EVENT: Final = b"data: {"
_LIST_BEFORE: Final = b"],"
"""Before the ids of a choice: usually those of its prompt, which an event may tell again."""


class StreamKeeper(Protocol):
    """Keeps the events of one stream."""

    def keep_events(self, data: bytes) -> bytes:
        """Keep whole events; returns them as the client gets them."""
        ...

    def read_stream(self) -> PassedStream:
        """All that has passed."""
        ...


class KeptTokens:
    """Of a stream with one choice: its last events, and the token ids of all others, four bytes each."""

    __slots__ = ("_begun", "_earlier", "_hides", "_ids", "_lacking", "_prompt", "_recent", "_stream", "_unchecked")

    def __init__(self, *, hides: bool) -> None:
        """`hides`: the client didn't ask for token ids."""
        self._hides = hides
        self._begun = False
        """The prompt isn't looked for any more: token ids came."""
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._ids: list[bytes] = []
        """The ids of each piece whose ids aren't in `_earlier`."""
        self._earlier: array[int] | None = None
        self._prompt: bytes | None = None
        """The ids of the prompt, as they came."""
        self._unchecked: list[bytes] = []
        """Pieces that may have an event with text and without ids."""
        self._lacking = False
        """Such an event came."""
        self._stream: PassedStream | None = None

    def keep_events(self, data: bytes) -> bytes:
        """Keep whole events; returns them as the client gets them."""
        before, _, after = data.rpartition(LIST)
        ids, _, end = after.partition(b"]")
        # Nearly always it is a single event, which says the text of one token.
        if (
            self._begun
            and (end == _USUAL_END or end.count(b"\n") == 2)
            and is_flat(ids)
            and before.find(b"\n") < 0
            and not before.endswith(_LIST_BEFORE)
        ):
            self._recent.append(data)
            lists = self._ids
            lists.append(ids)
            if len(lists) >= _FOLDED:
                self._fold()
            return before + NO_LIST + end if self._hides else data
        return self._keep_others(data)

    def read_stream(self) -> PassedStream:
        """All that has passed."""
        self._check_unchecked()
        stream = self._stream
        if stream is None:
            stream = self._stream = PassedStream(one=True)
        if self._prompt is not None:
            stream.take_prompt(read_ids((self._prompt,)))
        if len(self._ids) > len(self._recent) or self._earlier is not None:
            self._fold()
            stream.take_earlier(self._earlier, whole=not self._lacking)
        elif self._lacking:
            stream.take_earlier(None, whole=False)
        stream.read_events(b"".join(self._recent))
        self._prompt = self._earlier = None
        self._begun = False
        self._ids.clear()
        self._recent.clear()
        return stream

    def _keep_others(self, data: bytes) -> bytes:
        if self._lacking:
            # Nothing can be continued.
            return without_ids(data) if self._hides else data
        kept = data
        if not self._begun:
            # A long prompt is kept once.
            kept, self._prompt = cut_prompt(data)
        rest, lists = cut_ids(kept)
        self._recent.append(kept)
        self._ids.append(b",".join(lists))
        self._begun = self._begun or bool(lists) or self._prompt is not None
        if len(lists) != kept.count(_EVENT):
            self._unchecked.append(kept)
            if len(self._unchecked) >= _UNCHECKED:
                self._check_unchecked()
        if len(kept) > _LARGE:
            self.read_stream().forget_texts(keeps_text=False)
        elif len(self._ids) >= _FOLDED:
            self._fold()
        return without_others(rest, lists) if self._hides else data

    def _check_unchecked(self) -> None:
        if not (self._lacking or all_have_ids(b"".join(self._unchecked))):
            self._lacking = True
        self._unchecked.clear()

    def _fold(self) -> None:
        """Make numbers of the ids of all but the recent pieces."""
        number = len(self._ids) - len(self._recent)
        ids = read_ids(self._ids[:number])
        del self._ids[:number]
        if self._earlier is None:
            self._earlier = array("I")
        if ids is None:
            self._lacking = True
        else:
            self._earlier.extend(ids)


class KeptChoices:
    """Of a stream with several choices, or one whose text is kept: its last events, and of all others their token ids
    or texts."""

    __slots__ = ("_hides", "_keeps_text", "_recent", "_stream")

    def __init__(self, *, one: bool, keeps_text: bool, hides: bool) -> None:
        """`one`: it has a single choice; `hides`: the client didn't ask for token ids."""
        self._keeps_text = keeps_text
        self._hides = hides
        self._recent: list[bytes] = []
        self._stream = PassedStream(one=one)

    def keep_events(self, data: bytes) -> bytes:
        """Keep whole events; returns them as the client gets them."""
        recent = self._recent
        recent.append(data)
        if len(recent) >= 2 * RECENT or len(data) > _LARGE:
            older = len(recent) if len(data) > _LARGE else RECENT
            self._fold(older)
        return without_ids(data) if self._hides else data

    def read_stream(self) -> PassedStream:
        """All that has passed."""
        self._stream.read_events(b"".join(self._recent))
        self._recent.clear()
        return self._stream

    def _fold(self, number: int) -> None:
        if self._stream.readable:
            self._stream.read_events(b"".join(self._recent[:number]))
            self._stream.forget_texts(keeps_text=self._keeps_text)
        del self._recent[:number]
