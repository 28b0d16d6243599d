"""Bodies that grow: an agent sends its whole conversation again with each step, and little of it is new.

Where a body begins as an earlier one, up to the end of one of its messages, and ends as that one does behind its
messages, only the messages between differ: they alone are decoded and checked. Nothing else can stand there: the text
between is read as the items of one array, and a text that isn't is read as a whole.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, cast

import msgspec
import orjson
import xxhash
from pydantic import JsonValue

from pointsman_apis.fields import Document

LEAST_BYTES: Final = 16384
"""Smaller bodies are decoded sooner than they are looked up."""
LEAST_ITEMS: Final = 4
"""A body with fewer messages is no conversation that goes on."""
BODY_CACHE_BYTES: Final = 64 * 2**20
_COPIES: Final = 7
"""A body is kept as text and decoded, and its prompt with its tokens to name the blocks of the next one: together these
take about so many times its bytes."""
_LENGTHS: Final = tuple(4**power for power in range(10, 5, -1))
"""An earlier body is found by its first bytes: the longest of these beginnings that two bodies have in common."""
_MARKS: Final = b",[{"
_COMMA: Final = ord(",")
_SPACES: Final = b" \n\r\t"


class BodyParts(NamedTuple):
    """A body's text, cut into its messages."""

    head: bytes
    """The text up to the first message."""
    items: list[bytes]
    """The text of each message."""
    tail: bytes
    """The text behind the last message."""
    marks: list[int]
    """Commas and opening brackets in each message, and at last in the rest."""
    prelude: bytes
    """The members that a template renders before the messages, as JSON; empty without any."""

    @property
    def prompt(self) -> bytes:
        """The text of the prompt, as `pointsman_plugins.prompt` has it."""
        return self.prelude + b"[" + b",".join(self.items)


class EarlierBody(msgspec.Struct, eq=False):
    """A body that a later one may go on with."""

    api: str
    member: str
    """The member that holds its messages."""
    text: bytes
    """Empty once it is cut: most bodies of one request are never needed again, and cutting costs a fifth of reading."""
    parts: BodyParts | None
    """None as long as no later body began alike."""
    document: Document
    before: tuple[JsonValue, ...]
    """The values before the messages, see `View.head`."""
    starts: dict[int, int]
    """Hashes of its beginnings, by their lengths."""
    size: int
    memo: dict[int, tuple[object, object]]
    """What a reader of this conversation's bodies keeps for the next one, by the reader's identity."""
    prompts: dict[tuple[int, int, int], tuple[bytes, bytes]]
    """The last prompt and the hashes of its blocks, by bytes of a block, root and limit."""


class Grown(NamedTuple):
    """A body that goes on with an earlier one."""

    earlier: EarlierBody
    parts: BodyParts
    """Of the earlier one."""
    kept: int
    """Messages that both begin with."""
    between: bytes
    """The text of the further messages, as an array."""

    def count_marks(self) -> int:
        """Commas and opening brackets in the whole body."""
        marks = self.parts.marks
        return sum(marks[: self.kept]) + marks[-1] + count_marks(self.between) + self.kept


class GrownBodies:
    """The bodies that came last, bounded in bytes. May be used by several threads."""

    def __init__(self, max_bytes: int = BODY_CACHE_BYTES) -> None:
        self.grown = 0
        """Number of bodies whose end alone was read."""
        self._max_bytes: Final = max_bytes
        self._kept: Final[OrderedDict[int, EarlierBody]] = OrderedDict()
        """By identity, the one that was used least recently first."""
        self._by_start: Final[dict[tuple[str, int], EarlierBody]] = {}
        self._used = 0
        self._lock: Final = threading.Lock()

    def find_grown(self, api: str, text: bytes, starts: dict[int, int]) -> Grown | None:
        """The earlier body that this one goes on with; None where there is none. `starts` gets the hashes of this
        one's beginnings that were looked for."""
        for length in _LENGTHS:
            if length <= len(text):
                starts[length] = _hash_start(text, length)
                earlier = self._by_start.get((api, starts[length]))
                parts = None if earlier is None else self._cut_body(earlier)
                grown = None if earlier is None or parts is None else _compare(earlier, parts, text)
                if grown is not None:
                    return grown
        return None

    def keep_body(
        self,
        api: str,
        text: bytes,
        document: Document,
        *,
        member: str,
        head: tuple[JsonValue, ...],
        starts: Mapping[int, int],
    ) -> EarlierBody | None:
        """Keep a body for a later one; `member` holds its messages, `head` is that of its view, and `starts` as
        `find_grown` left it. None for one that can't be kept: it has few messages, or spaces between its members."""
        items = document[member]
        if not isinstance(items, list) or len(items) < LEAST_ITEMS or len(text) * _COPIES > self._max_bytes // 4:
            return None
        name = orjson.dumps(next(iter(document)))
        if text[: len(name) + 2] != b"{" + name + b":" or text[len(name) + 2] in _SPACES:
            return None
        made = EarlierBody(
            api=api, member=member, text=text, parts=None, document=document, before=head,
            starts=_hash_starts(text, starts), size=len(text) * _COPIES, memo={}, prompts={},
        )  # fmt: skip
        self._store_body(made, None)
        return made

    def keep_grown(self, text: bytes, grown: Grown, document: Document, fresh: list[bytes]) -> EarlierBody:
        """Keep a body in the place of the earlier one. `fresh`: the texts of its further messages."""
        earlier, former, kept = grown.earlier, grown.parts, grown.kept
        same = len(text) - len(former.tail) - len(grown.between) + 2
        known = {length: start for length, start in earlier.starts.items() if length <= same}
        parts = BodyParts(
            head=former.head,
            items=[*former.items[:kept], *_cut_out(fresh, grown.between, 1)],
            tail=former.tail,
            marks=[*former.marks[:kept], *map(count_marks, fresh), former.marks[-1]],
            prelude=former.prelude,
        )
        made = EarlierBody(
            api=earlier.api,
            member=earlier.member,
            text=b"",
            parts=parts,
            document=document,
            before=earlier.before,
            starts=_hash_starts(text, known),
            size=len(text) * _COPIES,
            memo=earlier.memo,
            prompts=dict(earlier.prompts),
        )
        self.grown += 1
        self._store_body(made, earlier)
        return made

    def _cut_body(self, body: EarlierBody) -> BodyParts | None:
        """The body's parts; None for one whose text isn't as orjson writes it, which isn't kept any longer."""
        if body.parts is None:
            body.parts = _cut_text(body.text, body.document, body.member, body.before)
            body.text = b""
            if body.parts is None:
                with self._lock:
                    self._remove_body(body)
        return body.parts

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


def _cut_text(text: bytes, document: Document, member: str, before: tuple[JsonValue, ...]) -> BodyParts | None:
    names = list(document)
    place = names.index(member)
    ahead = orjson.dumps({name: document[name] for name in names[:place]})[:-1]
    behind = orjson.dumps({name: document[name] for name in names[place + 1 :]})[1:]
    head = ahead + (b"," if place else b"") + orjson.dumps(member) + b":["
    tail = b"]" + (b"," if place + 1 < len(names) else b"") + behind
    items = [orjson.dumps(item) for item in cast("list[JsonValue]", document[member])]
    if head + b",".join(items) + tail != text:
        return None
    marks = [*map(count_marks, items), count_marks(head) + count_marks(tail)]
    prelude = orjson.dumps(before) if before.count(None) < len(before) else b""
    return BodyParts(head, _cut_out(items, text, len(head)), tail, marks, prelude)


def _compare(earlier: EarlierBody, parts: BodyParts, text: bytes) -> Grown | None:
    head, tail = parts.head, parts.tail
    if not (text.startswith(head) and text.endswith(tail)):
        return None
    at, end, kept = len(head), len(text) - len(tail), 0
    for item in parts.items:
        behind = at + len(item)
        if behind >= end or text[behind] != _COMMA or not text.startswith(item, at):
            break
        at = behind + 1
        kept += 1
    return Grown(earlier, parts, kept, b"[" + text[at:end] + b"]") if kept else None


def _cut_out(items: Iterable[bytes], text: bytes, start: int) -> list[bytes]:
    """The items as parts of the text in which they stand from `start` on: a result of orjson keeps its whole buffer,
    which takes many times the bytes of a short text."""
    ends = accumulate((len(item) + 1 for item in items), initial=start)
    return [text[at : end - 1] for at, end in pairwise(ends)]


def count_marks(text: bytes) -> int:
    """Commas and opening brackets, also those in strings."""
    return len(text) - len(text.translate(None, _MARKS))


def _hash_start(text: bytes, length: int) -> int:
    return xxhash.xxh3_64_intdigest(memoryview(text)[:length])


def _hash_starts(text: bytes, known: Mapping[int, int]) -> dict[int, int]:
    return {
        length: known[length] if length in known else _hash_start(text, length)
        for length in _LENGTHS
        if length <= len(text)
    }
