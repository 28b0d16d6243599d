"""The texts in an answer: where they stand, and how to put others in their place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

import orjson

Answer = dict[str, object]
"""A decoded answer, or the data of one event of a stream."""

_SPELLING: Final = frozenset({"logprobs", "token_ids"})
"""Members of choices and parts; `token_ids` are vLLM's, where a request sets `return_token_ids`."""


class Slot:
    """One place in a document that holds a text, or a part of one."""

    __slots__ = ("_holder", "_key", "complete", "kind", "part", "repeats")

    def __init__(
        self, part: str, kind: str, holder: Answer, key: str, *, repeats: bool = False, complete: bool = False
    ) -> None:
        self.part = part
        """Names the text within the answer: `<choice>/…`, the same in every event of a stream."""
        self.kind = kind
        """Kind of the text, as in `AnswerText.kind`."""
        self._holder = holder
        self._key = key
        self.repeats = repeats
        """It holds the whole of a text that events before it brought piece by piece."""
        self.complete = complete
        """No event brings more of it."""

    @property
    def place(self) -> tuple[int, str]:
        """Where it stands: the identity of the object that holds it, and the member's name."""
        return id(self._holder), self._key

    @property
    def choice(self) -> str:
        """The choice of the answer whose texts follow each other."""
        return self.part.partition("/")[0]

    @property
    def text(self) -> str:
        value = self._holder.get(self._key)
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    def replace_text(self, text: str) -> None:
        """Put another text there. Raises ValueError where JSON belongs and this isn't any."""
        put_all([(self, text)])

    def value_for(self, text: str) -> object:
        """The value that replaces a text. Raises ValueError where `put` does."""
        return text if isinstance(self._holder.get(self._key), str) else orjson.loads(text)

    def replace_value(self, value: object) -> None:
        """Let a value of `value_for` stand there."""
        self._holder[self._key] = value


def put_all(texts: Sequence[tuple[Slot, str]]) -> None:
    """Put other texts there, all of them or none. Raises ValueError where `Slot.replace_text` does."""
    values = [slot.value_for(text) for slot, text in texts]
    for (slot, _), value in zip(texts, values, strict=True):
        slot.replace_value(value)


def finished_choices(document: Answer) -> list[str]:
    """Choices that an event of a stream ends. Some services send an empty text as the reason of one that goes on
    (sgl-project/sglang #3912)."""
    return [str(choice.get("index", 0)) for choice in objects(document, "choices") if choice.get("finish_reason")]


def is_error(document: Answer) -> bool:
    """Whether a document or event is an error."""
    return bool(document.get("error")) or "error" in (document.get("object"), document.get("type"))


def error_slots(document: Answer) -> Iterator[Slot]:
    error = document.get("error")
    holder = cast("Answer", error) if isinstance(error, dict) else document
    yield from texts(holder, "error", {"message": "error", "error": "error"})


def no_slots(document: Answer) -> Iterator[Slot]:
    """No slots: for an API whose answers have no known texts."""
    del document
    return iter(())


def inner(
    holder: Answer, member: str, prefix: str, members: dict[str, str], *, complete: bool = False
) -> Iterator[Slot]:
    value = holder.get(member)
    if isinstance(value, dict):
        yield from texts(cast("Answer", value), prefix, members, complete=complete)


def texts(holder: Answer, prefix: str, members: dict[str, str], *, complete: bool = False) -> Iterator[Slot]:
    for name, kind in members.items():
        if isinstance(holder.get(name), str):
            yield Slot(f"{prefix}/{name}", kind, holder, name, complete=complete)


def index_of(holder: Mapping[str, object]) -> int | str:
    """The place of a choice or a block; 0 where it has none that one can be found by."""
    index = holder.get("index", 0)
    return index if isinstance(index, int | str) else 0


def objects(holder: Mapping[str, object], name: str) -> list[Answer]:
    """Those in a list of the document; none where there is no list."""
    value = holder.get(name)
    if not isinstance(value, list):
        return []
    return [cast("Answer", item) for item in cast("list[object]", value) if isinstance(item, dict)]


def forget_spelling(value: object) -> bool:
    """Remove log probabilities and token ids, which spell a text that was replaced; whether there were any."""
    found = False
    if isinstance(value, dict):
        members = cast("Answer", value)
        for name, member in members.items():
            if name in _SPELLING and member:
                members[name] = [] if isinstance(member, list) and name == "logprobs" else None
                found = True
            elif name != "input":  # what a tool is called with
                found |= forget_spelling(member)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            found |= forget_spelling(item)
    return found
