"""The events of a stream that passes, kept in case it breaks off.

A stream that isn't cut must cost next to nothing. Its last events are kept as they came, and nothing is read in them
before it breaks off.
"""

from typing import Final, Protocol

from pointsman_apis.beginning import may_give_up
from pointsman_apis.token_ids import LIST, NAME, NO_TEXT, cut_ids, cut_prompt, read_ids, without_ids
from pointsman_frontend.domain.resuming.passed_stream import PassedStream, all_have_ids

RECENT: Final = 32
"""Pieces that are kept as they came, at least: the points at which the answer can be continued lie in them."""
_FOLDED: Final = 3 * RECENT
"""When so many pieces are kept, all but the last `RECENT` become numbers together, which takes less time."""
_LARGE: Final = 65536
"""A piece of more bytes becomes numbers at once."""
_USUAL_END: Final = b"]}]}\n\n"
"""The end of an event with token ids."""
_BRACKET: Final = len(b":[")
_BEHIND: Final = len(NAME) + _BRACKET + len(_USUAL_END)
_NO_IDS: Final = NAME + b":null}]}\n\n"
_NO_PROMPT: Final = b':null,"token_ids":['[_BRACKET:]
"""Comes before the ids of completions, from where a prompt's would begin."""
_EMPTY: Final = LIST + b"]"
_GOES_ON: Final = b'"finish_reason":null'
_EVENT: Final = b"data: {"


class StreamKeeper(Protocol):
    """Keeps the events of one stream."""

    def keep_usual(self, data: bytes) -> bytes | None:
        """Like `keep_events`, for a single event that says the text of tokens and nothing else; None, and nothing is
        kept, for others."""
        ...

    def keep_events(self, data: bytes) -> bytes:
        """Keep whole events; returns them as the client gets them."""
        ...

    def read_stream(self) -> PassedStream: ...


class KeptTokens:
    """Keeps a stream with one choice: its last events, and the token ids of all others, four bytes each."""

    __slots__ = ("_events", "_hides", "_lacking", "_odd", "_prompt", "_stream", "_thinking_end")

    def __init__(self, *, hides: bool, thinking_end: str | None) -> None:
        """`hides`: the client didn't ask for token ids. `thinking_end`: the mark behind the model's thoughts."""
        self._hides = hides
        self._thinking_end = thinking_end
        self._events: list[bytes] = []
        self._odd = 0
        """The number of the last event that isn't usual among them."""
        self._prompt: bytes | None = None
        """The ids of the prompt, as they came, once its event isn't among the last ones."""
        self._lacking = False
        """An event came that has text and no ids: nothing can be continued."""
        self._stream: PassedStream | None = None

    def keep_usual(self, data: bytes) -> bytes | None:
        """Keep a usual event (`StreamKeeper.keep_usual`)."""
        # It ends with the id of one token. Any other list of ids comes before that one, and the bytes from there on
        # aren't digits then.
        before, _, after = data.partition(NAME)
        ids = after.removesuffix(_USUAL_END)[_BRACKET:]
        if not ids.isdigit():
            # Completions have a prompt's ids too.
            ids = ids.removeprefix(_NO_PROMPT)
            if len(ids) == len(after) - _BRACKET or not ids.replace(b",", b"").isdigit():
                return None
            before = data[: len(data) - len(ids) - _BEHIND]
        if before.find(b"\n") >= 0 or len(before) > _LARGE:
            return None
        if _GOES_ON not in before and may_give_up(before):
            return None
        events = self._events
        events.append(data)
        if len(events) >= _FOLDED:
            self._fold(RECENT)
        if not self._hides:
            return data
        return b"" if before.endswith(NO_TEXT) else before + _NO_IDS

    def keep_events(self, data: bytes) -> bytes:
        """Keep any events (`StreamKeeper.keep_events`)."""
        kept = data
        if len(data) > _LARGE:
            # Usually it has the ids of a long prompt.
            kept = self._cut_prompt(data)
        self._events.append(kept)
        self._odd = len(self._events)
        if len(kept) > _LARGE:
            self._fold(0)
        elif len(self._events) >= _FOLDED:
            self._fold(RECENT)
        return without_ids(data) if self._hides else data

    def read_stream(self) -> PassedStream:
        stream = self._begun_stream()
        if self._prompt is not None:
            stream.take_prompt(read_ids((self._prompt,)))
            self._prompt = None
        stream.read_events(b"".join(self._events))
        self._events.clear()
        self._odd = 0
        return stream

    def _begun_stream(self) -> PassedStream:
        if self._stream is None:
            self._stream = PassedStream(one=True, thinking_end=self._thinking_end)
        return self._stream

    def _cut_prompt(self, data: bytes) -> bytes:
        """Keep the ids of the prompt once; returns the events without them."""
        if self._prompt is not None:
            return data
        data, self._prompt = cut_prompt(data)
        return data

    def _fold(self, recent: int) -> None:
        """Keep nothing but the token ids of all events that come before so many pieces."""
        number = len(self._events) - recent
        odd = min(self._odd, number)
        self._odd -= odd
        if odd:
            self._fold_odd(self._events[:odd])
        if not self._lacking:
            lists = [event[event.rfind(b"[") + 1 : -len(_USUAL_END)] for event in self._events[odd:number]]
            self._begun_stream().take_earlier(read_ids(lists))
        del self._events[:number]

    def _fold_odd(self, events: list[bytes]) -> None:
        if self._lacking:
            return
        data = self._cut_prompt(b"".join(events))
        _, lists = cut_ids(data)
        ids = read_ids(lists)
        if len(lists) != data.count(_EVENT) or not all(lists):
            doubtful = [event for event in events if event.count(LIST) != event.count(_EVENT) or _EMPTY in event]
            self._lacking = not all_have_ids(b"".join(doubtful))
        self._begun_stream().take_earlier(None if self._lacking else ids)


class KeptChoices:
    """Keeps a stream with several choices, or with text: its last events, and of all others their token ids
    or texts."""

    __slots__ = ("_hides", "_keeps_text", "_recent", "_stream")

    def __init__(self, *, one: bool, keeps_text: bool, hides: bool, thinking_end: str | None) -> None:
        """`one`: it has a single choice; `hides`: the client didn't ask for token ids. `thinking_end`: the mark behind
        the model's thoughts."""
        self._keeps_text = keeps_text
        self._hides = hides
        self._recent: list[bytes] = []
        self._stream = PassedStream(one=one, thinking_end=thinking_end)

    def keep_usual(self, data: bytes) -> bytes | None:
        """Keep a usual event (`StreamKeeper.keep_usual`)."""
        del data
        return None

    def keep_events(self, data: bytes) -> bytes:
        """Keep any events (`StreamKeeper.keep_events`)."""
        recent = self._recent
        recent.append(data)
        if len(recent) >= 2 * RECENT or len(data) > _LARGE:
            older = len(recent) if len(data) > _LARGE else RECENT
            self._fold(older)
        return without_ids(data) if self._hides else data

    def read_stream(self) -> PassedStream:
        self._stream.read_events(b"".join(self._recent))
        self._recent.clear()
        return self._stream

    def _fold(self, number: int) -> None:
        if self._stream.readable:
            self._stream.read_events(b"".join(self._recent[:number]))
            self._stream.forget_texts(keeps_text=self._keeps_text)
        del self._recent[:number]
