"""Vectors in base64 for a client that asks for them, where an engine answers with lists of numbers in any case.

OpenAI's clients ask for base64 unless their user says otherwise. The one for Node then reads a list as if it were
base64: its vectors have a quarter of their length and are zero (openai/openai-node #1646, mudler/LocalAI #9135).
"""

import re
import sys
from array import array
from base64 import b64encode
from typing import Final

import orjson

from pointsman_edge.sending.unasked_usage import Passing, Rewriting

_ASKED: Final = re.compile(rb'"encoding_format"\s*:\s*"base64"')
"""In a request. A quote inside a JSON string is written `\\"`, so this is always a member."""
_VECTOR: Final = re.compile(rb'("embedding"\s*:\s*)(\[[-+.\deE\s,]+\])')
_NAME: Final = b'"embedding"'
_BEGUN: Final = re.compile(rb'"embedding"\s*(?::\s*(?:\[[-+.\deE\s,]*)?)?\Z')


class PackedVectors:
    """Packs each list of numbers as little-endian floats of 32 bits; all other bytes stay, except for the changes of
    `then`."""

    __slots__ = ("_then",)

    def __init__(self, then: Rewriting | None) -> None:
        self._then = then

    def rewrite_bytes(self, data: bytes) -> bytes:
        """A whole document."""
        data = _VECTOR.sub(_pack, data)
        return data if self._then is None else self._then.rewrite_bytes(data)

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document, which has no vectors."""
        return data if self._then is None else self._then.put_in_error(data)

    def in_pieces(self) -> Passing:
        """Holds one vector at most."""
        return _Passing(None if self._then is None else self._then.in_pieces())


class _Passing:
    __slots__ = ("_held", "_then")

    def __init__(self, then: Passing | None) -> None:
        self._then = then
        self._held = b""

    def rewrite_part(self, data: bytes) -> bytes:
        """Like `Passing.rewrite_part`."""
        data = self._held + data
        # The rest of the last vector may follow, and that of its name.
        cut = data.rfind(_NAME)
        if cut < 0 or _BEGUN.match(data, cut) is None:
            cut = data.rfind(b'"', max(len(data) - len(_NAME), 0))
            if cut < 0 or not _NAME.startswith(data[cut:]):
                cut = len(data)
        self._held = data[cut:]
        data = _VECTOR.sub(_pack, data[:cut])
        return data if self._then is None else self._then.rewrite_part(data)

    def rest(self) -> bytes:
        """Like `Passing.rest`."""
        held, self._held = self._held, b""
        return held if self._then is None else self._then.rewrite_part(held) + self._then.rest()


def with_packed_vectors(request: bytes, then: Rewriting | None) -> Rewriting | None:
    """`then`, after the change that the request for embeddings asks for."""
    return PackedVectors(then) if _ASKED.search(request) is not None else then


def _pack(vector: re.Match[bytes]) -> bytes:
    """Lists that aren't JSON stay."""
    try:
        numbers = array("f", orjson.loads(vector[2]))
    except (orjson.JSONDecodeError, OverflowError):
        return vector[0]
    if sys.byteorder == "big":
        numbers.byteswap()
    return vector[1] + b'"' + b64encode(numbers.tobytes()) + b'"'
