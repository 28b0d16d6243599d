"""Bodies that grow: an agent sends its whole conversation again with each step, and little of it is new.

Where a body begins as an earlier one, up to the end of one of its messages, and ends as that one does behind its
messages, only the messages between differ: they alone are decoded and checked. Nothing else can stand there: the text
between is read as the items of one array, and a text that isn't is read as a whole.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
import orjson
import xxhash

from pointsman_apis.fields import Document

LEAST_BYTES: Final = 16384
"""Smaller bodies are decoded sooner than they are looked up."""
LEAST_ITEMS: Final = 4
"""A body with fewer messages is no conversation that goes on."""
BODY_CACHE_BYTES: Final = 64 * 2**20
_COPIES: Final = 4
"""A body is kept as text and decoded, and its prompt to name the blocks of the next one: together these take about so
many times its bytes."""
_LENGTHS: Final = tuple(4**power for power in range(10, 5, -1))
"""An earlier body is found by its first bytes: the longest of these beginnings that two bodies have in common."""
_MARKS: Final = b",[{"
_COMMA: Final = ord(",")


class EarlierBody(msgspec.Struct, eq=False):
    """A body that a later one may go on with."""

    api: str
    head: bytes
    """Its text up to the first message."""
    items: list[bytes]
    """The text of each message."""
    tail: bytes
    """Its text behind the last message."""
    marks: list[int]
    """Commas and opening brackets in each message, and at last in the rest."""
    document: Document
    prelude: bytes
    """The members that a template renders before the messages, as JSON; empty without any."""
    starts: dict[int, int]
    """Hashes of its beginnings, by their lengths."""
    size: int
    memo: dict[int, tuple[object, object]]
    """What a reader of this conversation's bodies keeps for the next one, by the reader's identity."""
    prompts: dict[tuple[int, int, int], tuple[bytes, bytes]]
    """The last prompt and the hashes of its blocks, by bytes of a block, root and limit."""

    @property
    def prompt(self) -> bytes:
        """The text of the prompt, as `pointsman_plugins.prompt` has it."""
        return self.prelude + b"[" + b",".join(self.items)


class Grown(NamedTuple):
    """A body that goes on with an earlier one."""

    earlier: EarlierBody
    kept: int
    """Messages that both begin with."""
    between: bytes
    """The text of the further messages, as an array."""

    def count_marks(self) -> int:
        """Commas and opening brackets in the whole body."""
        marks = self.earlier.marks
        return sum(marks[: self.kept]) + marks[-1] + count_marks(self.between) + self.kept


class GrownBodies:
    """The bodies that came last, bounded in bytes. May be used by several threads."""

    def __init__(self, max_bytes: int = BODY_CACHE_BYTES) -> None:
        self.grown = 0
        """Bodies of which the end alone was read."""
        self._max_bytes: Final = max_bytes
        self._kept: Final[OrderedDict[int, EarlierBody]] = OrderedDict()
        """By identity, the one that was used least recently first."""
        self._by_start: Final[dict[tuple[str, int], EarlierBody]] = {}
        self._used = 0
        self._lock: Final = threading.Lock()

    def find_grown(self, api: str, text: bytes) -> Grown | None:
        """The earlier body that this one goes on with; None where there is none."""
        for length in _LENGTHS:
            if length <= len(text):
                earlier = self._by_start.get((api, _hash_start(text, length)))
                grown = None if earlier is None else _compare(earlier, text)
                if grown is not None:
                    return grown
        return None

    def keep_body(self, api: str, text: bytes, document: Document, member: str, prelude: bytes) -> EarlierBody | None:
        """Keep a body for a later one; `member` holds its messages. None for one that can't be kept: it has few
        messages, or its text isn't as orjson writes it."""
        items = document[member]
        if not isinstance(items, list) or len(items) < LEAST_ITEMS or len(text) * _COPIES > self._max_bytes // 4:
            return None
        names = list(document)
        place = names.index(member)
        before = orjson.dumps({name: document[name] for name in names[:place]})[:-1]
        behind = orjson.dumps({name: document[name] for name in names[place + 1 :]})[1:]
        head = before + (b"," if place else b"") + orjson.dumps(member) + b":["
        tail = b"]" + (b"," if place + 1 < len(names) else b"") + behind
        texts = [orjson.dumps(item) for item in items]
        if head + b",".join(texts) + tail != text:
            return None
        marks = [*map(count_marks, texts), count_marks(head) + count_marks(tail)]
        made = EarlierBody(
            api=api, head=head, items=texts, tail=tail, marks=marks, document=document, prelude=prelude,
            starts=_hash_starts(text, {}), size=len(text) * _COPIES, memo={}, prompts={},
        )  # fmt: skip
        self._store_body(made, None)
        return made

    def keep_grown(self, text: bytes, grown: Grown, document: Document, fresh: list[bytes]) -> EarlierBody:
        """Keep a body in the place of the earlier one. `fresh`: the texts of its further messages."""
        earlier, kept = grown.earlier, grown.kept
        same = len(text) - len(earlier.tail) - len(grown.between) + 2
        known = {length: start for length, start in earlier.starts.items() if length <= same}
        made = EarlierBody(
            api=earlier.api,
            head=earlier.head,
            items=[*earlier.items[:kept], *fresh],
            tail=earlier.tail,
            marks=[*earlier.marks[:kept], *map(count_marks, fresh), earlier.marks[-1]],
            document=document,
            prelude=earlier.prelude,
            starts=_hash_starts(text, known),
            size=len(text) * _COPIES,
            memo=earlier.memo,
            prompts=dict(earlier.prompts),
        )
        self.grown += 1
        self._store_body(made, earlier)
        return made

    def _store_body(self, made: EarlierBody, earlier: EarlierBody | None) -> None:
        with self._lock:
            if earlier is not None:
                self._remove_body(earlier)
            self._kept[id(made)] = made
            self._used += made.size
            for start in made.starts.values():
                self._by_start[made.api, start] = made
            while self._used > self._max_bytes:
                self._remove_body(next(iter(self._kept.values())))

    def _remove_body(self, body: EarlierBody) -> None:
        if self._kept.pop(id(body), None) is None:
            return
        self._used -= body.size
        for start in body.starts.values():
            if self._by_start.get((body.api, start)) is body:
                del self._by_start[body.api, start]


def _compare(earlier: EarlierBody, text: bytes) -> Grown | None:
    head, tail = earlier.head, earlier.tail
    if not (text.startswith(head) and text.endswith(tail)):
        return None
    at, end, kept = len(head), len(text) - len(tail), 0
    for item in earlier.items:
        behind = at + len(item)
        if behind >= end or text[behind] != _COMMA or not text.startswith(item, at):
            break
        at = behind + 1
        kept += 1
    return Grown(earlier, kept, b"[" + text[at:end] + b"]") if kept else None


def count_marks(text: bytes) -> int:
    """Commas and opening brackets, also those in strings."""
    return len(text) - len(text.translate(None, _MARKS))


def _hash_start(text: bytes, length: int) -> int:
    return xxhash.xxh3_64_intdigest(text[:length])


def _hash_starts(text: bytes, known: Mapping[int, int]) -> dict[int, int]:
    return {
        length: known[length] if length in known else _hash_start(text, length)
        for length in _LENGTHS
        if length <= len(text)
    }
