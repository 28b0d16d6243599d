"""What a client has of a stream of choices: tokens, texts and ends.

A stream that isn't cut must cost next to nothing. Its last events are kept as they came, and are only read when it
breaks off; of earlier ones the token ids are kept, four bytes each.
"""

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from pointsman_apis.streams import Document, EventSplitter, StreamEvent, lenient_document
from pointsman_apis.texts import Answer, objects
from pointsman_apis.token_ids import ids_in, ids_of, without_ids

RECENT: Final = 64
"""Pieces that are kept as they came, at most: the points at which the answer can be continued lie in the last half of
them."""
_LARGE: Final = 65536
"""A piece of more bytes is read at once."""
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")
_CALLS: Final = ("tool_calls", "function_call", "audio", "refusal", "reasoning_details")
_THOUGHTS: Final = ("reasoning_content", "reasoning")


class Mark(NamedTuple):
    """A point between two tokens. The text of all tokens before it has reached the client."""

    tokens: int
    """Tokens before it."""
    overlap: str
    """Text behind it that the client has too: a part of a token, or of several."""
    offset: int | None
    """Where `logprobs.text_offset` goes on; None where there is none."""
    whole: bool
    """It certainly lies between two characters."""


class _Point(NamedTuple):
    tokens: int
    characters: int
    offset: int | None
    whole: bool


class PassedChoice:
    """One choice of the answer."""

    __slots__ = (
        "called", "characters", "events", "finished", "ids", "ids_whole", "points", "prompt", "spoke", "texts",
        "thinking", "trimmed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt: array[int] | None = None
        """Token ids of its prompt, where the engine told them."""
        self.ids: array[int] = array("I")
        self.ids_whole = True
        """Every text came with its token ids."""
        self.texts: list[str] = []
        """All texts, or those of the last events."""
        self.characters = 0
        """Length of `text`."""
        self.points: list[_Point] = []
        self.trimmed = False
        """Earlier texts and points aren't kept."""
        self.events = 0
        """Events with text."""
        self.spoke = False
        """Text of the answer came."""
        self.thinking = False
        """The last text was a thought."""
        self.called = False
        """A tool call, or another part that isn't text, came."""
        self.finished = False

    @property
    def text(self) -> str:
        """The text that is kept."""
        return "".join(self.texts)

    @property
    def tokens(self) -> int:
        """Tokens that came: counted by their ids, or by the events where the engine told none."""
        return len(self.ids) if self.ids_whole and self.ids else self.events

    def last_mark(self, held_back: int, steps_back: int, *, whole: bool) -> Mark | None:
        """The last point from which an engine can go on; None where it isn't known any more. `held_back`: characters by
        which the engine's text is behind its tokens. `steps_back`: take an earlier point. `whole`: one that lies
        between two characters is better than a later one."""
        text = self.text
        fitting = [point for point in self.points if point.characters + held_back <= len(text)]
        if whole:
            fitting = [point for point in fitting if point.whole] or ([] if not self.trimmed else fitting)
        if len(fitting) > steps_back:
            point = fitting[-1 - steps_back]
            return Mark(point.tokens, text[point.characters + held_back :], point.offset, point.whole)
        return None if self.trimmed else Mark(0, text, None, True)

    def rewind(self, tokens: int) -> None:
        """Forget the tokens behind a mark: they come again."""
        del self.ids[tokens:]
        self.points = [point for point in self.points if point.tokens <= tokens]

    def forget_texts(self) -> None:
        """Forget texts and points."""
        self.texts.clear()
        self.points.clear()
        self.characters = 0
        self.trimmed = True


class PassedStream:
    """One stream, from its first event on."""

    __slots__ = ("_keeps_text", "_one", "_recent", "_strips", "choices", "head", "prompt", "readable", "usage_told")

    def __init__(self, *, one: bool, keeps_text: bool, strips: bool) -> None:
        """`one`: it has a single choice. `keeps_text`: the whole text is kept. `strips`: the client didn't ask for
        token ids."""
        self._one = one
        self._keeps_text = keeps_text
        self._strips = strips
        self._recent: list[bytes] = []
        self.choices: dict[int, PassedChoice] = {}
        """By index; those of which something came."""
        self.head: Answer = {}
        """Members that every event repeats."""
        self.prompt: array[int] | None = None
        """Token ids of the conversation's prompt, where the engine told them."""
        self.readable = True
        """Every event could be read."""
        self.usage_told = False
        """The usage at the end has come."""

    def pass_on(self, data: bytes) -> bytes:
        """Keep whole events; returns them as the client gets them."""
        recent = self._recent
        recent.append(data)
        if len(recent) >= RECENT or len(data) > _LARGE:
            half = len(recent) if len(data) > _LARGE else RECENT // 2
            self._forget(recent[:half])
            del recent[:half]
        return without_ids(data) if self._strips else data

    def read_kept(self) -> None:
        """Read all that is kept: the stream broke off."""
        self._read(self._recent)
        self._recent.clear()

    def _forget(self, pieces: Sequence[bytes]) -> None:
        """Keep what is needed of events that aren't recent any more."""
        if not self.readable:
            return
        if self._one and not self._keeps_text and self.head:
            ids = ids_in(pieces)
            if ids is not None:
                choice = self._choice(0)
                choice.ids.extend(ids)
                choice.forget_texts()
                return
        self._read(pieces)
        for choice in self.choices.values():
            if not self._keeps_text:
                choice.forget_texts()
                # An engine that tells no ids, or not all: nothing more is read for it.
                self.readable &= choice.ids_whole
            del choice.points[:-RECENT]

    def _read(self, pieces: Sequence[bytes]) -> None:
        splitter = EventSplitter()
        for event in splitter.split_one_by_one(b"".join(pieces), last=True):
            document = _document(event)
            if document is not None:
                self._take_event(document)

    def _take_event(self, document: Document) -> None:
        choices = objects(document, "choices")
        if choices and not self.head:
            self.head = {name: document[name] for name in _HEAD if name in document}
        if self.prompt is None:
            self.prompt = ids_of(document.get("prompt_token_ids"))
        if not choices and isinstance(document.get("usage"), dict):
            self.usage_told = True
        for members in choices:
            index = members.get("index", 0)
            if type(index) is not int or (self._one and index):
                self.readable = False
                return
            self._take_choice(self._choice(index), members)

    def _choice(self, index: int) -> PassedChoice:
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = PassedChoice()
        return choice

    def _take_choice(self, choice: PassedChoice, members: Answer) -> None:
        text, thought, called = said(members)
        if choice.prompt is None:
            choice.prompt = ids_of(members.get("prompt_token_ids"))
        ids = ids_of(members.get("token_ids"))
        if ids is not None:
            choice.ids.extend(ids)
        elif text or thought:
            choice.ids_whole = False
        choice.called |= called
        if text or thought:
            choice.events += 1
            choice.thinking = not text
        if text:
            choice.spoke = True
            choice.texts.append(text)
            choice.characters += len(text)
            # A token that ends within a character brings no text.
            whole = ids is not None and len(ids) == 1
            choice.points.append(_Point(len(choice.ids), choice.characters, _offset(members), whole))
        if members.get("finish_reason") is not None:
            choice.finished = True


def said(members: Answer) -> tuple[str, bool, bool]:
    """The text of a choice in one event, whether it has a thought, and whether a part that isn't text, e.g. a tool
    call."""
    text = members.get("text")
    if isinstance(text, str):
        return text, False, False
    delta = members.get("delta")
    if not isinstance(delta, dict):
        return "", False, "delta" in members and delta is not None
    parts = cast("Answer", delta)
    content = parts.get("content")
    called = any(parts.get(name) for name in _CALLS)
    thought = any(parts.get(name) for name in _THOUGHTS)
    if content is None or isinstance(content, str):
        return content or "", thought, called
    return "", thought, True


def _offset(members: Answer) -> int | None:
    logprobs = members.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    told = cast("Answer", logprobs)
    offsets, tokens = told.get("text_offset"), told.get("tokens")
    if not (isinstance(offsets, list) and isinstance(tokens, list) and offsets and tokens):
        return None
    last, token = cast("list[object]", offsets)[-1], cast("list[object]", tokens)[-1]
    return last + len(token) if isinstance(last, int) and isinstance(token, str) else None


def _document(event: StreamEvent) -> Document | None:
    return lenient_document(event.data) if event.data else None
