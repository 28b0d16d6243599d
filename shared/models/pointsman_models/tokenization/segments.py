"""Encodes a text piece by piece, so that known pieces aren't encoded again.

A Hugging Face tokenizer finds its added tokens first and encodes the text between them separately (`tokenizers`,
`added_vocabulary.rs`, `extract_and_normalize`). So the text after such a token doesn't depend on the text before it,
and chat templates put one at the end of every message.
"""

import re
import sys
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple, cast

from tokenizers import AddedToken, Tokenizer

from pointsman_models.tokenization.bounded_table import BoundedTable

ENTRY_BYTES: Final = 250
"""Bytes of a piece's entry in the table besides its text and tokens (measured)."""

_ANYWHERE: Final = frozenset(
    {
        "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Punctuation", "Split", "UnicodeScripts",
        "Whitespace", "WhitespaceSplit",
    }
)  # fmt: skip
"""Pre-tokenizers to which it makes no difference where in a text a piece is."""


class EncodedText(NamedTuple):
    """A text, its tokens, and the places at which it was cut."""

    text: str
    ids: bytes
    ends: list[int]
    """Ends of its pieces, in characters."""
    id_ends: list[int]
    """Ends of the pieces' tokens, in bytes."""


class SegmentEncoder:
    """Token ids of texts, with a table of pieces bounded in bytes. May be used by several threads."""

    def __init__(self, tokenizer: Tokenizer, pre_tokenizer: object, cache_bytes: int) -> None:
        """`pre_tokenizer`: its description in `tokenizer.json`."""
        self.hits = 0
        """Characters whose tokens were known."""
        self.misses = 0
        self._tokenizer: Final = tokenizer
        self._cached: Final = BoundedTable[str, bytes](cache_bytes, _size)
        self._lock: Final = threading.Lock()
        added = tokenizer.get_added_tokens_decoder()
        self._cut: Final = _cut_at(added.values()) if _is_position_free(pre_tokenizer) else None

    def encode_text(self, text: str) -> bytes:
        """Token ids, 4 bytes each, little-endian; without the tokens that only whole sequences get."""
        return b"".join(self._encode_pieces(self._pieces(text)))

    def encode_next(self, text: str, former: EncodedText | None) -> EncodedText:
        """Token ids of `text`, as `encode_text` gives them, with the cuts of the text. `former`: an earlier text; its
        pieces that `text` begins with too aren't encoded again."""
        cuts = 0 if former is None else bisect_right(former.ends, _count_equal(former.text, text))
        if former is None or not cuts:
            start, ids, ends, id_ends = 0, memoryview(b""), list[int](), list[int]()
        else:
            ends, id_ends = former.ends[:cuts], former.id_ends[:cuts]
            start, ids = ends[-1], memoryview(former.ids)[: id_ends[-1]]
        pieces = self._pieces(text[start:])
        encoded = self._encode_pieces(pieces)
        # The last piece needn't end at a cut.
        ends += [start + end for end in accumulate(map(len, pieces[:-1]))]
        id_ends += [len(ids) + end for end in accumulate(map(len, encoded[:-1]))]
        return EncodedText(text, b"".join([ids, *encoded]), ends, id_ends)

    def _encode_pieces(self, pieces: list[str]) -> list[bytes]:
        with self._lock:
            encoded = [self._look_up(piece) for piece in pieces]
        missing = list(dict.fromkeys(piece for piece, ids in zip(pieces, encoded, strict=True) if ids is None))
        if not missing:
            return cast("list[bytes]", encoded)
        found = dict(zip(missing, self._encode(missing), strict=True))
        with self._lock:
            for piece, ids in found.items():
                self._cached.keep(piece, ids)
        return [found[piece] if ids is None else ids for piece, ids in zip(pieces, encoded, strict=True)]

    def _pieces(self, text: str) -> list[str]:
        if self._cut is None:
            return [text]
        pieces: list[str] = []
        start = 0
        for match in self._cut.finditer(text):
            pieces.append(text[start : match.end()])
            start = match.end()
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def _encode(self, texts: list[str]) -> list[bytes]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [little_endian(encoding.ids) for encoding in encodings]

    def _look_up(self, piece: str) -> bytes | None:
        ids = self._cached.look_up(piece)
        if ids is None:
            self.misses += len(piece)
        else:
            self.hits += len(piece)
        return ids


def _count_equal(former: str, text: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(former), len(text))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(former[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def little_endian(ids: list[int]) -> bytes:
    """Token ids as they are hashed."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _size(piece: str, ids: bytes) -> int:
    return sys.getsizeof(piece) + len(ids) + ENTRY_BYTES


def _is_position_free(pre_tokenizer: object) -> bool:
    if pre_tokenizer is None:
        return True
    if not isinstance(pre_tokenizer, dict):
        return False
    fields = cast("dict[str, object]", pre_tokenizer)
    kind = fields.get("type")
    if kind == "Sequence":
        return all(_is_position_free(each) for each in cast("list[object]", fields.get("pretokenizers") or []))
    if kind == "Metaspace":
        return fields.get("prepend_scheme") in ("always", "never")
    return kind in _ANYWHERE


def _cut_at(added: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """Finds the ends of tokens behind which a text may be cut."""
    # Tokens that are looked for in the unchanged text; the others are looked for in normalized pieces later.
    found_first = [token for token in added if token.content and not token.normalized]
    words = any(token.single_word for token in found_first)
    safe = [
        token.content
        for token in found_first
        # `rstrip` and `single_word` look at what follows; whitespace in front may belong to a token before.
        if not token.rstrip
        and not token.single_word
        and not token.content[0].isspace()
        and not (words and (token.content[-1].isalnum() or token.content[-1] == "_"))
        and not any(_overlaps(other.content, token.content) for other in found_first)
    ]
    if not safe:
        return None
    # The longest of those that begin at one place is the one that counts.
    return re.compile("|".join(re.escape(content) for content in sorted(safe, key=len, reverse=True)))


def _overlaps(other: str, token: str) -> bool:
    """Whether `other` can begin before an occurrence of `token`, or at it, and end within or behind it."""
    if other == token:
        return False
    return token in other or any(other.endswith(token[:size]) for size in range(1, min(len(other), len(token) + 1)))
