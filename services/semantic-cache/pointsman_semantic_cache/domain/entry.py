"""An answer that is kept."""

import hashlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from pointsman_contracts.identity import LONGEST_NAME
from pointsman_contracts.journey import Target
from pointsman_contracts.response import Usage
from pointsman_embedding.embedder import Vector
from pointsman_semantic_cache.domain.gate.signature import Signature

OVERHEAD: Final = 512
"""Bytes that an entry takes beside its body and vector, about."""


PASSED: Final = "passed"
UNCHECKED: Final = "none"
"""Values of `CacheEntry.verdict`."""


class Partition(NamedTuple):
    """The clients that share answers. A lookup never reads another partition."""

    cache: str
    tenant: str
    """Same as `place_of`."""
    subject: str
    """Like `place_of`. Empty where the whole tenant shares."""
    model: str
    """The target's: pool or provider, model."""
    epoch: str
    """Epoch of the policy by which its answers were made and checked."""


class Meaning(NamedTuple):
    """The semantic tier's record of a question. It has none of its words."""

    context: bytes
    """Fingerprint of everything but the last turn."""
    embedder: str
    vector: Vector
    signature: Signature


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One answer."""

    key: bytes
    """`Asked.exact`."""
    body: bytes
    content_type: str
    status: int
    named: str | None
    """The model's name in the body."""
    verdict: str
    """The guard's verdict on the answer: `PASSED`, or `UNCHECKED` where the profile has no guard."""
    usage: Usage | None
    kept_ms: int
    """When, in unix milliseconds."""
    expires_ms: int
    meaning: Meaning | None = None
    """None: only the very same request gets it."""
    question: str | None = field(default=None, repr=False)
    """Text of the last turn, where a model compares texts and this process looked the request up."""

    @property
    def size(self) -> int:
        """Bytes."""
        text = 0 if self.question is None else len(self.question.encode("utf-8", "surrogatepass"))
        return len(self.body) + OVERHEAD + text + (0 if self.meaning is None else self.meaning.vector.nbytes)


def place_of(name: str) -> str:
    """Stands for a tenant or a subject in a partition: the name, or where it is long its beginning and a hash, which
    together are longer than any name that stands for itself."""
    if len(name) <= LONGEST_NAME:
        return name
    return name[:LONGEST_NAME] + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def model_of(target: Target | None) -> str:
    """The target's: pool or provider, model."""
    return "" if target is None else f"{target.provider or ''}/{target.pool or ''}/{target.model}"


def encode_signature(signature: Signature) -> bytes:
    """For stores and memos."""
    return msgspec.json.encode(signature, order="deterministic")


def decode_signature(data: bytes) -> Signature:
    """The signature that `encode_signature` wrote. Raises ValueError for anything else."""
    return _SIGNATURES.decode(data)


_SIGNATURES: Final = msgspec.json.Decoder(Signature)
