"""The part of a stream of choices that a client has: tokens, texts and ends.

It is read when a stream breaks off.
"""

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from pointsman_apis.streams import Document, EventSplitter, lenient_document
from pointsman_apis.texts import Answer, objects
from pointsman_apis.token_ids import ids_of

_POINTS: Final = 64
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
        "answer_at", "called", "characters", "events", "finished", "ids", "ids_whole", "points", "prompt", "spoke",
        "texts", "thinking", "thought_names", "trimmed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt: array[int] | None = None
        """Token ids of its prompt, where the engine told them."""
        self.ids: array[int] = array("I")
        self.ids_whole = True
        """Every text came with its token ids."""
        self.texts: list[str] = []
        """All texts, or those of the last events: as the model writes them, with the mark behind its thoughts. Where
        that is unknown, thoughts end with the answer's first text."""
        self.answer_at = 0
        """Where the answer begins in `text`."""
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
        self.thought_names: tuple[str, ...] = ()
        """Members of the delta in which thoughts came."""
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
        self.characters = self.answer_at = 0
        self.trimmed = True


class PassedStream:
    """One stream, from its first event on."""

    __slots__ = ("_one", "_thinking_end", "choices", "head", "prompt", "readable", "usage_told")

    def __init__(self, *, one: bool, thinking_end: str | None) -> None:
        """`one`: it has a single choice. `thinking_end`: the mark behind the model's thoughts; None: unknown."""
        self._one = one
        self._thinking_end = thinking_end
        self.choices: dict[int, PassedChoice] = {}
        """By index; a choice is here once any part of it has come."""
        self.head: Answer = {}
        """Members that every event repeats."""
        self.prompt: array[int] | None = None
        """Token ids of the conversation's prompt, where the engine told them."""
        self.readable = True
        """Every event could be read."""
        self.usage_told = False
        """The usage at the end has come."""

    def read_events(self, data: bytes) -> None:
        """Read the next events."""
        for document in documents_in(data):
            self._take_event(document)

    def take_prompt(self, ids: "array[int] | None") -> None:
        """The token ids of the only prompt; None where they couldn't be read."""
        if ids is not None and self.prompt is None:
            self.prompt = self._choice(0).prompt = ids

    def take_earlier(self, ids: "array[int] | None") -> None:
        """The next token ids of the only choice, whose events aren't kept; None where a text came without ids."""
        choice = self._choice(0)
        choice.ids_whole &= ids is not None
        if ids:
            choice.ids.extend(ids)
            choice.forget_texts()

    def forget_texts(self, *, keeps_text: bool) -> None:
        """Forget all points but the last ones and, unless it is kept, the text before them."""
        for choice in self.choices.values():
            if not keeps_text:
                choice.forget_texts()
                # An engine that tells no ids, or not all: nothing more is read for it.
                self.readable &= choice.ids_whole
            del choice.points[:-_POINTS]

    def _take_event(self, document: Document) -> None:
        choices = objects(document, "choices")
        if choices and not self.head:
            self.head = {name: document[name] for name in _HEAD if name in document}
        if self.prompt is None:
            self.prompt = ids_of(document.get("prompt_token_ids"))
        if not choices and isinstance(document.get("usage"), dict):
            # One that comes before the end isn't that of the whole answer.
            self.usage_told = all(choice.finished for choice in self.choices.values())
        for members in choices:
            if not self.take_choice(members):
                return

    def take_choice(self, members: Answer) -> bool:
        """Take a choice of an event; whether it could be read."""
        index = members.get("index", 0)
        if type(index) is not int or (self._one and index):
            self.readable = False
            return False
        self._take_choice(self._choice(index), members)
        return True

    def take_answer(self, prompt: "array[int]", ids: "array[int]", characters: int) -> None:
        """The token ids of the prompt and of the text so far, which an engine cut anew, of a stream with one choice.
        `characters` had come with the last of these ids."""
        choice = self._choice(0)
        self.prompt, choice.ids, choice.ids_whole = prompt, ids, True
        choice.points = [_Point(len(ids), characters, None, True)]

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
        choice.finished |= bool(members.get("finish_reason"))
        if ids:
            choice.ids.extend(ids)
        elif (text or thought) and (ids is None or not choice.finished):
            choice.ids_whole = False
        choice.called |= called
        shown = text
        if thought:
            shown, choice.thought_names = _thought_in(members)
        if text:
            if choice.thinking or thought:
                before = shown if thought else ""
                shown = self._behind_thoughts(choice, before, text)
            choice.spoke, choice.thinking = True, False
        elif thought:
            choice.thinking = True
        if not (text or thought):
            return
        choice.events += 1
        choice.texts.append(shown)
        choice.characters += len(shown)
        # A token that ends within a character brings no text.
        whole = ids is not None and len(ids) == 1
        choice.points.append(_Point(len(choice.ids), choice.characters, _offset(members), whole))

    def _behind_thoughts(self, choice: PassedChoice, thought: str, text: str) -> str:
        """The first text of the answer and the end of the thoughts, as the model writes them."""
        if self._thinking_end is None:
            choice.forget_texts()
            return text
        choice.answer_at = choice.characters + len(thought) + len(self._thinking_end)
        return thought + self._thinking_end + text


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
    thought = any(isinstance(parts.get(name), str) and parts[name] for name in _THOUGHTS)
    called |= any(parts.get(name) and not isinstance(parts[name], str) for name in _THOUGHTS)
    if content is None or isinstance(content, str):
        return content or "", thought, called
    return "", thought, True


def _thought_in(members: Answer) -> tuple[str, tuple[str, ...]]:
    parts = cast("Answer", members["delta"])
    names = tuple(name for name in _THOUGHTS if parts.get(name))
    return str(parts[names[0]]), names


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


def all_have_ids(data: bytes) -> bool:
    """Whether every event that has text has its token ids too."""
    choices = [choice for document in documents_in(data) for choice in objects(document, "choices")]
    return all(ids_of(choice.get("token_ids")) or not any(said(choice)[:2]) for choice in choices)


def documents_in(data: bytes) -> Iterator[Document]:
    """The objects that are the data of whole events."""
    splitter = EventSplitter()
    for event in splitter.split_one_by_one(data, last=True):
        document = lenient_document(event.data) if event.data else None
        if document is not None:
            yield document
