"""The answers of a process on disk, so that a restart doesn't begin with nothing."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from pydantic import BaseModel, JsonValue, ValidationError

from pointsman_contracts.message import MalformedMessage, fields_of, read_fields
from pointsman_contracts.response import Usage
from pointsman_semantic_cache.domain.entry import CacheEntry, Meaning, Partition, decode_signature, encode_signature

FORMAT: Final = 2
_HEAD: Final = "head.json"
_BODIES: Final = "bodies"


class SnapshotUnreadable(Exception):
    """The file isn't a snapshot, or one of another version."""


class _Meaning(BaseModel):
    context: str
    embedder: str
    places: int
    signature: str


class _Kept(BaseModel):
    partition: Partition
    key: str
    size: int
    content_type: str
    status: int
    named: str | None
    verdict: str
    usage: dict[str, JsonValue] | None
    kept_ms: int
    expires_ms: int
    meaning: _Meaning | None
    question: str | None = None


class _Head(BaseModel):
    format: int
    entries: list[_Kept]


def write(file: Path, entries: Iterable[tuple[Partition, CacheEntry]]) -> int:
    """Write the entries in place of the snapshot before; returns how many there are. Raises OSError."""
    kept: list[_Kept] = []
    bodies = io.BytesIO()
    for partition, entry in entries:
        meaning = entry.meaning
        if meaning is not None:
            bodies.write(meaning.vector.astype("<f4").tobytes())
        bodies.write(entry.body)
        kept.append(_kept(partition, entry))
    half = file.with_suffix(".half")
    with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_HEAD, orjson.dumps(_Head(format=FORMAT, entries=kept).model_dump(mode="json")))
        archive.writestr(_BODIES, bodies.getvalue())
    # Answers are private: only this user may read the file.
    half.chmod(0o600)
    half.replace(file)
    return len(kept)


def read(file: Path) -> Iterator[tuple[Partition, CacheEntry]]:
    """The entries that `write` wrote, in its order. Raises SnapshotUnreadable and OSError before the first entry."""
    try:
        with zipfile.ZipFile(file) as archive:
            head = _Head.model_validate_json(archive.read(_HEAD))
            bodies = archive.read(_BODIES)
        if head.format != FORMAT:
            raise SnapshotUnreadable(f"its format is {head.format}, not {FORMAT}")
        entries = list(_entries(head.entries, bodies))
    except (ValidationError, MalformedMessage) as error:
        raise SnapshotUnreadable("its header can't be read") from error
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise SnapshotUnreadable(type(error).__name__) from error
    return iter(entries)


def _kept(partition: Partition, entry: CacheEntry) -> _Kept:
    meaning = entry.meaning
    written = None
    if meaning is not None:
        signature = encode_signature(meaning.signature).decode()
        written = _Meaning(
            context=meaning.context.hex(), embedder=meaning.embedder, places=len(meaning.vector), signature=signature
        )
    return _Kept(
        partition=partition,
        key=entry.key.hex(),
        size=len(entry.body),
        content_type=entry.content_type,
        status=entry.status,
        named=entry.named,
        verdict=entry.verdict,
        usage=None if entry.usage is None else fields_of(entry.usage),
        kept_ms=entry.kept_ms,
        expires_ms=entry.expires_ms,
        meaning=written,
        question=entry.question,
    )


def _entries(kept: Iterable[_Kept], bodies: bytes) -> Iterator[tuple[Partition, CacheEntry]]:
    at = 0
    for one in kept:
        meaning = None
        if one.meaning is not None:
            stored = one.meaning
            vector = np.frombuffer(bodies, "<f4", stored.places, at).astype(np.float32)
            at += vector.nbytes
            signature = decode_signature(stored.signature.encode())
            meaning = Meaning(bytes.fromhex(stored.context), stored.embedder, vector, signature)
        body = bodies[at : at + one.size]
        at += one.size
        yield (
            one.partition,
            CacheEntry(
                key=bytes.fromhex(one.key),
                body=body,
                content_type=one.content_type,
                status=one.status,
                named=one.named,
                verdict=one.verdict,
                usage=None if one.usage is None else read_fields(Usage, one.usage),
                kept_ms=one.kept_ms,
                expires_ms=one.expires_ms,
                meaning=meaning,
                question=one.question,
            ),
        )
