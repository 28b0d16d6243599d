"""The lookup's note for the replica that stores the answer: facts of the request, none of its words.

It travels in the itinerary to the edge, which hands it back with the answer. The question is embedded once (S3-22).
"""

import base64
from typing import Final, NamedTuple

import numpy as np
import orjson

from pointsman_embedding.embedder import Vector
from pointsman_semantic_cache.domain.entry import Meaning, Partition, decode_signature, encode_signature

LARGEST: Final = 16384
"""Characters of a memo; the message that it travels in may have 64 KiB. A longer one leaves the meaning out."""
_STEP: Final = 32767


class Memo(NamedTuple):
    """The memo of one request."""

    partition: Partition
    key: bytes
    meaning: Meaning | None = None


class MemoUnreadable(Exception):
    """It isn't one of ours."""


def encode(memo: Memo) -> str:
    """As text."""
    text = _encode(memo)
    return text if len(text) <= LARGEST else _encode(memo._replace(meaning=None))


def decode(text: str) -> Memo:
    """The memo that `encode` wrote. Raises MemoUnreadable."""
    try:
        partition, key, meaning = orjson.loads(base64.b64decode(text, validate=True))
        return Memo(Partition(*partition), bytes.fromhex(key), None if meaning is None else _meaning(*meaning))
    except (ValueError, TypeError, IndexError) as error:
        raise MemoUnreadable(type(error).__name__) from error


def _encode(memo: Memo) -> str:
    meaning = memo.meaning
    written = None
    if meaning is not None:
        # Two bytes a place: the product of two vectors differs by less than 0.0001.
        vector = np.rint(meaning.vector * _STEP).astype("<i2").tobytes()
        signature = encode_signature(meaning.signature).decode()
        written = (meaning.context.hex(), meaning.embedder, base64.b64encode(vector).decode(), signature)
    return base64.b64encode(orjson.dumps((list(memo.partition), memo.key.hex(), written))).decode()


def _meaning(context: str, embedder: str, vector: str, signature: str) -> Meaning:
    places: Vector = np.frombuffer(base64.b64decode(vector), "<i2").astype(np.float32) / np.float32(_STEP)
    return Meaning(bytes.fromhex(context), embedder, places, decode_signature(signature.encode()))
