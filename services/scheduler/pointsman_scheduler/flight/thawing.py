"""Sets a pool's scheduler to a state from a snapshot.

A snapshot only says what to put where: objects that the scheduler has made itself are filled, and others are made of
known classes without running their code. A field that the snapshot lacks keeps its initial value.
"""

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import msgspec
import numpy as np

from pointsman_contracts.message import Part, read_part
from pointsman_contracts.scheduling import ReservationChange
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index.recency import FrozenRecency, Recency
from pointsman_scheduler.flight.earlier_snapshots import FLAT_FIELDS, nest
from pointsman_scheduler.flight.freezing import Array, Ref
from pointsman_scheduler.flight.known_classes import UnknownClassError, find
from pointsman_scheduler.flight.packing import REFERENCE

Values: TypeAlias = list[object]


_BLANK: Final = {"change": ReservationChange(op="", request_id="", worker="")}
"""The value of a field until the snapshot's value is there; None for the others."""


class SnapshotError(Exception):
    """The snapshot can't be taken over; the text says why and what to do."""


def unpacked(parts: Iterable[bytes]) -> Values:
    """The nodes of a snapshot. Raises SnapshotError."""
    decoder = msgspec.msgpack.Decoder(ext_hook=_reference)
    nodes: Values = []
    try:
        for part in parts:
            nodes += cast("Values", decoder.decode(part))
    except (msgspec.MsgspecError, ValueError) as error:
        raise SnapshotError(f"the snapshot can't be read: {error}") from error
    return nodes


def thaw(nodes: Sequence[object], pool: PoolScheduler, policies: Mapping[int, Policy]) -> None:
    """Fill `pool`, which is as it was made, and the plugins of `policies`. Raises SnapshotError."""
    try:
        existing = {"pool": pool, "ledger": pool.books, "policies": dict(policies)}
        thawer = _Thawer(nodes)
        roots = cast("dict[str, object]", thawer.value(Ref(0), existing))
        thawer.nest_fields()
        pool.index.thawed(cast("int", roots["bits"]), [int(bit) for bit in cast("list[str]", roots["free"])])
        pool.fleet.relaid()
    except UnknownClassError as error:
        raise SnapshotError(
            f"the snapshot was written by another version: this one has no {error}. Replay from the first segment of "
            "the scheduler's life, which begins empty, or with the version that wrote it"
        ) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SnapshotError(
            f"the snapshot doesn't fit this version ({type(error).__name__}: {error}). Replay from the first segment "
            "of the scheduler's life, which begins empty, or with the version that wrote it"
        ) from error


class _Thawer:
    def __init__(self, nodes: Sequence[object]) -> None:
        self._nodes: Final = nodes
        self._made: dict[int, object] = {}
        self._flat: list[tuple[object, dict[str, object]]] = []
        """Objects of an earlier version, with the fields that are in a message now."""
        # Each gets the node's index, the node, and the object that stands in its place.
        self._makers: Final[Mapping[str, Callable[[int, Values, object], object]]] = {
            "t": lambda _index, node, own: tuple(self._values(node[1], own)),
            "l": self._list,
            "s": lambda _index, node, _own: set(self._values(node[1])),
            "f": lambda _index, node, _own: frozenset(self._values(node[1])),
            "d": lambda index, node, own: self._dict(index, node, own, {}),
            "o": lambda index, node, own: self._dict(index, node, own, OrderedDict[object, object]()),
            "c": lambda index, node, own: self._dict(index, node, own, cast("dict[object, object]", Counter[object]())),
            "q": lambda _index, node, _own: deque(self._values(node[2]), cast("int | None", node[1])),
            "a": lambda _index, node, _own: array(cast("str", node[1]), cast("bytes", node[2])),
            "n": lambda _index, node, _own: _numbers(node[1], node[3]).reshape(cast("list[int]", node[2])),
            "g": lambda _index, node, _own: cast("object", _numbers(node[1], node[2])[0]),
            "m": lambda _index, node, _own: _message(_class(node[1], Part), cast("str", node[2])),
            "e": lambda _index, node, _own: _class(node[1], Enum)(node[2]),
            "N": lambda _index, node, own: _named_tuple(_class(node[1], tuple), self._values(node[2], own)),
            "r": lambda _index, node, _own: _recency(cast("Values", node[1])),
            "x": self._object,
        }

    def value(self, raw: object, own: object = None) -> object:
        """The value; `own` is the one that stands in its place, which is filled where it is of the same class."""
        if isinstance(raw, list):  # a number too large for msgpack
            return int(cast("list[str]", raw)[1])
        if not isinstance(raw, Ref):
            return raw
        if raw.index in self._made:
            return self._made[raw.index]
        node = cast("Values", self._nodes[raw.index])
        made = self._made[raw.index] = self._makers[cast("str", node[0])](raw.index, node, own)
        return made

    def _object(self, index: int, node: Values, own: object) -> object:
        kind = _class(node[1], object)
        made = own if isinstance(own, kind) else _blank(kind)
        self._made[index] = made
        put = setattr if isinstance(made, msgspec.Struct) else object.__setattr__
        nested = FLAT_FIELDS.get(kind, ())
        former: dict[str, object] = {}
        for name, raw in zip(cast("list[str]", node[2]), cast("Values", node[3]), strict=True):
            value = self.value(raw, getattr(made, name, None))
            if name in nested:
                former[name] = value
            else:
                put(made, name, value)
        if former:
            self._flat.append((made, former))
        return made

    def nest_fields(self) -> None:
        """Call it when all objects are there: one may need another's name."""
        for made, former in self._flat:
            nest(made, former)

    def _list(self, index: int, node: Values, own: object) -> object:
        made: Values = []
        self._made[index] = made
        made += self._values(node[1], own)
        return made

    def _dict(self, index: int, node: Values, own: object, made: dict[object, object]) -> object:
        # A proxy can't be replaced in the object that has it: its values are filled.
        self._made[index] = cast("object", own) if isinstance(own, MappingProxyType) else made
        known: Mapping[object, object] = cast("Mapping[object, object]", own) if isinstance(own, Mapping) else {}
        keys = self._values(node[1])
        values = self._values(node[2], [known.get(key) for key in keys] if known else None)
        # `update` of a Counter would count the pairs, and that of `dict` leaves the order of an OrderedDict empty.
        for key, value in zip(keys, values, strict=True):
            made[key] = value  # noqa: PERF403 - of the class that `made` is
        return self._made[index]

    def _values(self, raws: object, own: object = None) -> Values:
        if isinstance(raws, dict):
            ((kind, rows),) = cast("dict[str, list[Values]]", raws).items()
            named = _class(kind, tuple) if kind else None
            whole = [[self.value(each) for each in row] for row in rows]
            return [tuple(row) if named is None else _named_tuple(named, row) for row in whole]
        given = cast("Values", raws)
        mine = list(cast("Sequence[object]", own)) if isinstance(own, list | tuple) else []
        if len(mine) != len(given):
            mine = [None] * len(given)
        return [self.value(raw, one) for raw, one in zip(given, mine, strict=True)]


def _class(name: object, base: type) -> type:
    kind = find(cast("str", name))
    if not issubclass(kind, base):
        raise TypeError(f"{name} is no {base.__name__}")
    return kind


def _blank(kind: type) -> object:
    fields = cast("tuple[str, ...] | None", getattr(kind, "__struct_fields__", None))
    if fields is not None:  # a struct refuses `object.__new__`; the snapshot has the fields that are None until then
        defaults = cast("tuple[object, ...]", getattr(kind, "__struct_defaults__", ()))
        return cast("Callable[..., object]", kind)(*map(_BLANK.get, fields[: len(fields) - len(defaults)]))
    return cast("object", object.__new__(kind))


def _message(kind: type, text: str) -> object:
    return read_part(cast("type[Part]", kind), text)


def _named_tuple(kind: type, values: Values) -> object:
    return tuple[object, ...].__new__(cast("type[tuple[object, ...]]", kind), values)


def _numbers(dtype: object, content: object) -> Array:
    kind = np.dtype(cast("str", dtype))
    if kind.kind not in "biuf":
        raise ValueError(f"{dtype} is no type of numbers")
    return np.frombuffer(cast("bytes", content), dtype=kind).copy()


def _recency(packed: Values) -> Recency:
    keys, stamps, newest, logged, oldest, oldest_run, cleaned, rest, flags = packed
    ranked, cleaning, sealed = cast("list[bool]", flags)
    run = cast("list[float] | None", oldest_run)
    table = Recency()
    table.thaw(
        FrozenRecency(
            held=dict(zip(_whole(keys, "<u8"), _whole(stamps, "<i8"), strict=True)),
            newest=cast("int", newest),
            logged=cast("int", logged),
            oldest=_whole(oldest, "<u8"),
            oldest_run=None if run is None else (int(run[0]), run[1]),
            cleaned=_runs(cast("list[bytes]", cleaned)),
            rest=_runs(cast("list[bytes]", rest)),
            flags=(ranked, cleaning, sealed),
        )
    )
    return table


def _whole(content: object, dtype: str) -> list[int]:
    return cast("list[int]", np.frombuffer(cast("bytes", content), dtype=dtype).tolist())


def _runs(packed: Sequence[bytes]) -> "list[tuple[int, float, array[int]]]":
    stamps, times, lengths, blocks = packed
    ats = cast("list[float]", np.frombuffer(times, dtype="<f8").tolist())
    runs: list[tuple[int, float, array[int]]] = []
    start = 0
    for stamp, at, length in zip(_whole(stamps, "<i8"), ats, _whole(lengths, "<i8"), strict=True):
        runs.append((stamp, at, array("Q", blocks[start : start + 8 * length])))
        start += 8 * length
    return runs


def _reference(code: int, content: memoryview) -> object:
    if code != REFERENCE:
        raise ValueError(f"extension {code} is unknown")
    return Ref(int.from_bytes(content, "little"))
