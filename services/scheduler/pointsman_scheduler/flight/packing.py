"""Frozen states as bytes, with block hashes renamed and ids hashed. Runs beside the event loop, a little at a time."""

import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import NO_BYTES, Blob, Part, write
from pointsman_contracts.scheduling import ReservationChange
from pointsman_flight.salt import LEAST_HASH, Hashes, Salt
from pointsman_scheduler.domain.late_binding import PeerRequest
from pointsman_scheduler.domain.prefix_index.recency import FrozenRecency, Promise
from pointsman_scheduler.flight.freezing import Array, Frozen, Node, Ref, Rows, Values
from pointsman_scheduler.flight.logged_facts import logged_facts

REFERENCE: Final = 1
"""Code of a msgpack extension: the index of a node, 4 bytes, little-endian."""
_AT_ONCE: Final = 8192
"""Numbers converted without a break: the event loop waits for as long."""
_NODES: Final = 256
_MOST: Final = 2**64

_REQUEST: Final = "pointsman_plugins.scheduling.request:ScheduleRequest"
_RESERVATION: Final = "pointsman_plugins.scheduling.worker:Hold"
_PEER_REQUEST: Final = "pointsman_scheduler.domain.late_binding.unbound:PeerRequest"
_PEER_ID: Final = PeerRequest._fields.index("request_id")
_PEER_BLOCKS: Final = PeerRequest._fields.index("blocks")
_KEYED_BY_SESSION: Final = {"pointsman_scheduler.plugins.producers.session:Session": "_bound"}


class Packer:
    """Packs the states of one log. `hash_ids`: whether ids are hashed."""

    def __init__(self, salt: Salt, hash_ids: bool, headers: frozenset[str]) -> None:
        """`headers`: names of those that may be kept."""
        self._salt: Final = salt
        self._hash_ids: Final = hash_ids
        self._headers: Final = headers
        self._encoder: Final = msgspec.msgpack.Encoder(enc_hook=_reference)

    def pack_parts(self, frozen: Frozen) -> Iterator[bytes]:
        """The nodes, as msgpack arrays of some nodes each."""
        self._keys = set(self._key_tuples(frozen.nodes)) if self._hash_ids else set[int]()
        self._sessions = set(self._session_tables(frozen.nodes)) if self._hash_ids else set[int]()
        batch: list[object] = []
        for index, node in enumerate(frozen.nodes):
            batch.append(self._packed(index, node))
            if len(batch) >= _NODES or node[0] == "r":
                yield self._encoder.encode(batch)
                batch = []
                time.sleep(0)
        yield self._encoder.encode(batch)

    def _packed(self, index: int, node: Node) -> object:
        kind = node[0]
        if kind == "x":
            return self._object(node)
        if kind in ("d", "o", "c"):
            keys, values = cast("Values", node[1]), cast("Values", node[2])
            if isinstance(keys, Rows) or isinstance(values, Rows):
                return kind, self._column(self._ids(index, keys), keys=True), self._column(values)
            return kind, self._column(self._ids(index, keys)), self._column(values)
        if kind in ("l", "s", "f"):
            return kind, self._column(cast("Values", node[1]))
        if kind == "t":
            values = cast("Values", node[1])
            if index in self._keys and not isinstance(values, Rows):
                values = [values[0], self._salt.hash_id(cast("str", values[1])), *values[2:]]
            return kind, self._column(values)
        if kind == "q":
            return kind, node[1], self._column(cast("Values", node[2]))
        if kind == "N":
            values = cast("Values", node[2])
            if node[1] == _PEER_REQUEST and not isinstance(values, Rows):
                values = list(self._peer_request(values))
            return kind, node[1], self._column(values)
        if kind == "m":
            return kind, node[1], write(self._logged(cast("Part", node[2]))).decode()
        if kind == "a":
            numbers = cast("array[int]", node[1])
            return kind, numbers.typecode, self._array(np.array(numbers)).tobytes()
        if kind == "n":
            numbers = cast("Array", node[1])
            return kind, numbers.dtype.str, numbers.shape, self._array(numbers).tobytes()
        if kind == "g":
            number = cast("np.generic", node[1])
            return kind, number.dtype.str, number.tobytes()
        if kind == "r":
            return kind, self._recency(cast("Promise", node[1]).keep())
        return list(node)

    def _logged(self, part: Part) -> Part:
        """The message as it may be kept: block hashes renamed, ids hashed, and no facts that only rules read."""
        if isinstance(part, RequestFacts):
            return logged_facts(part, self._headers, self._salt.hash_id if self._hash_ids else None)
        rename = self._salt.hash_id if self._hash_ids else str
        if isinstance(part, ReservationChange):
            session, blocks = part.session and rename(part.session), self._salt.rename_packed(part.blocks)
            own = {"request_id": rename(part.request_id), "blocks": Blob(blocks) if blocks else NO_BYTES}
            return replace(part, **own, session=session)
        return part

    def _ids(self, index: int, keys: Values) -> Values:
        """The keys of a table, hashed if they are sessions."""
        if index not in self._sessions or isinstance(keys, Rows):
            return keys
        return [self._salt.hash_id(cast("str", key)) for key in keys]

    def _object(self, node: Node) -> object:
        kind, name = node[0], cast("str", node[1])
        names, values = cast("list[str]", node[2]), list(cast("list[object]", node[3]))
        if name == _REQUEST and self._hash_ids:
            place = names.index("request_id")
            values[place] = self._salt.hash_id(cast("str", values[place]))
        return kind, name, names, self._column(values)

    def _column(self, values: Values, *, keys: bool = False) -> object:
        if not isinstance(values, Rows):
            return self._numbers(values)
        rows = values.rows
        if values.kind == _PEER_REQUEST:
            rows = [self._peer_request(row) for row in rows]
        if keys and self._hash_ids and all(isinstance(text, str) for text in chain.from_iterable(rows)):
            rows = [
                (row[0], self._salt.hash_id(cast("str", row[1])), *row[2:]) if len(row) > 1 else row for row in rows
            ]
        if any(type(number) is int and number >= LEAST_HASH for number in chain.from_iterable(rows)):
            rows = [tuple(self._numbers(list(row))) for row in rows]
        return {values.kind: rows}

    def _peer_request(self, row: Sequence[object]) -> tuple[object, ...]:
        values = list(row)
        if self._hash_ids:
            values[_PEER_ID] = self._salt.hash_id(cast("str", values[_PEER_ID]))
        values[_PEER_BLOCKS] = self._salt.rename_packed(cast("bytes", values[_PEER_BLOCKS]))
        return tuple(values)

    def _numbers(self, values: list[object]) -> list[object]:
        """The values with hashes renamed, and numbers too large for msgpack as text."""
        places = [place for place, value in enumerate(values) if type(value) is int and value >= LEAST_HASH]
        if not places:
            return values
        values = values.copy()
        large = [place for place in places if cast("int", values[place]) >= _MOST]
        for place in large:
            values[place] = ["i", str(values[place])]
        places = [place for place in places if type(values[place]) is int]
        renamed: list[int] = self._salt.rename_hashes(
            np.array([values[place] for place in places], dtype=np.uint64)
        ).tolist()
        for place, number in zip(places, renamed, strict=True):
            values[place] = number
        return values

    def _array(self, numbers: Array) -> Array:
        return self._salt.rename_hashes(cast("Hashes", numbers)) if numbers.dtype == np.uint64 else numbers

    def _recency(self, frozen: FrozenRecency) -> object:
        keys, stamps = _columns(frozen.held)
        return (
            self._salt.rename_hashes(keys).tobytes(),
            stamps.tobytes(),
            frozen.newest,
            frozen.logged,
            self._salt.rename_hashes(np.array(frozen.oldest, dtype=np.uint64)).tobytes(),
            frozen.oldest_run,
            self._runs(frozen.cleaned),
            self._runs(frozen.rest),
            frozen.flags,
        )

    def _runs(self, runs: "list[tuple[int, float, array[int]]]") -> object:
        stamps = np.array([stamp for stamp, _, _ in runs], dtype="<i8")
        times = np.array([at for _, at, _ in runs], dtype="<f8")
        lengths = np.array([len(blocks) for _, _, blocks in runs], dtype="<i8")
        blocks = b"".join([blocks.tobytes() for _, _, blocks in runs])
        return stamps.tobytes(), times.tobytes(), lengths.tobytes(), self._salt.rename_packed(blocks)

    def _key_tuples(self, nodes: Sequence[Node]) -> Iterator[int]:
        """Request keys: tuples of two or three texts that are keys of a table, or name a reservation."""
        candidates: list[object] = []
        for node in nodes:
            if node[0] in ("d", "o", "c"):
                keys = cast("Values", node[1])
                candidates += [] if isinstance(keys, Rows) else keys
            elif node[0] == "x" and node[1] == _RESERVATION:
                names, values = cast("list[str]", node[2]), cast("list[object]", node[3])
                candidates += [values[names.index(name)] for name in ("request", "key")]
        for ref in candidates:
            if isinstance(ref, Ref):
                node = nodes[ref.index]
                if node[0] == "t" and all(isinstance(text, str) for text in cast("list[object]", node[1])):
                    yield ref.index

    def _session_tables(self, nodes: Sequence[Node]) -> Iterator[int]:
        for node in nodes:
            field = _KEYED_BY_SESSION.get(cast("str", node[1])) if node[0] == "x" else None
            names = cast("list[str]", node[2]) if field is not None else []
            if field is not None and field in names:
                ref = cast("list[object]", node[3])[names.index(field)]
                if isinstance(ref, Ref):
                    yield ref.index


def _columns(held: dict[int, int]) -> tuple[Hashes, Array]:
    """Keys and values of a large table, without holding the interpreter for long."""
    keys, stamps = np.empty(len(held), dtype=np.uint64), np.empty(len(held), dtype=np.int64)
    left_keys, left_stamps = iter(held), iter(held.values())
    for start in range(0, len(held), _AT_ONCE):
        count = min(_AT_ONCE, len(held) - start)
        keys[start : start + count] = np.fromiter(islice(left_keys, count), dtype=np.uint64, count=count)
        stamps[start : start + count] = np.fromiter(islice(left_stamps, count), dtype=np.int64, count=count)
        time.sleep(0)
    return keys, stamps


def _reference(value: object) -> object:
    if isinstance(value, Ref):
        return msgspec.msgpack.Ext(REFERENCE, value.index.to_bytes(4, "little"))
    raise TypeError(f"{type(value).__qualname__} can't be packed")
