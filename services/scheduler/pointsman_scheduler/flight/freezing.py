"""Copies the state of a pool's scheduler, in one turn of the event loop, into nodes that later changes leave alone.

Tables of blocks, the largest part, are copied afterwards: each before it changes, or when its promise is kept.

A node is a list: its kind, then its content. Values that aren't scalars are references to nodes, so that objects that
the state holds twice are one object again after `thawing`. `packing` encodes them, in another thread.
"""

import math
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import chain
from operator import attrgetter
from types import MappingProxyType, NoneType
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
from pydantic import BaseModel

from pointsman_contracts.message import Part
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.outlier_detection import OutlierDetection
from pointsman_scheduler.domain.patience import Patience
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.domain.prefix_index.recency import Promise, Recency
from pointsman_scheduler.domain.prefix_index.reports import Reports
from pointsman_scheduler.flight.known_classes import is_known, name_of
from pointsman_scheduler.plugins.pre_requests.headers import DestinationHeader

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
SCALARS: Final = frozenset((NoneType, bool, int, float, str, bytes))

_ONLY: Final[Mapping[type, frozenset[str]]] = {
    # Its columns mirror the workers, and are laid out anew.
    Fleet: frozenset(("epoch", "_by_name", "_departed", "_ejected", "_lacking", "_heard_at")),
    Ledger: frozenset(("_holds", "_ended")),
}
"""Attributes that are copied, of classes that have others besides."""
_NOT: Final[Mapping[type, frozenset[str]]] = {
    PoolScheduler: frozenset(("books", "policies", "_late", "overdue")),
    Policy: frozenset(("flow_control", "forecast", "sticky")),
    Patience: frozenset(("forecast",)),
    OutlierDetection: frozenset(("_unanswered",)),
    PrefixIndex: frozenset(("_masks", "_matched", "_hashes", "_reported", "reach")),
    ScheduleRequest: frozenset(("attributes", "fetched")),
    DestinationHeader: frozenset(("_epoch", "_written")),
}
"""Attributes that aren't copied: they follow from the others, or serve one decision only."""


class Ref:
    """A reference to a node."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index: Final = index


class _Absent:
    """Stands for a value that isn't part of the state."""


class Rows(NamedTuple):
    """Tuples of scalars, all of one class: they don't change, so no node is made of each."""

    kind: str
    """The class of a named tuple; otherwise empty."""
    rows: list[tuple[object, ...]]


Values: TypeAlias = list[object] | Rows

_ABSENT: Final = _Absent()
Node = tuple[object, ...]


class Frozen(NamedTuple):
    """A state. The first node is the dictionary of its roots."""

    nodes: list[Node]
    missing: list[str]
    """Attributes whose content can't be copied, as `<class>.<attribute>: <type>`."""
    promises: list[Promise]
    """Tables that are still to be copied, by the thread that changes them; then nodes may go to another one."""


def freeze(pool: PoolScheduler, policies: Mapping[int, Policy]) -> Frozen:
    """Copy the pool's state and that of the policies' plugins, by the numbers that the log gives them."""
    bits, free = pool.index.bits()
    freezer = _Freezer(ranks_of(pool.fleet))
    freezer.value(
        {
            "pool": pool,
            "ledger": pool.books,
            "policies": dict(policies),
            "bits": bits,
            "free": [str(bit) for bit in free],
        }
    )
    return Frozen(freezer.nodes, freezer.missing, freezer.promises)


def ranks_of(fleet: Fleet) -> int:
    """The least number that the data-parallel ranks of every worker divide: a request's place in it gives its place in
    each worker."""
    return math.lcm(*(max(1, worker.registration.data_parallel_size) for worker in fleet))


class _Freezer:
    def __init__(self, ranks: int) -> None:
        self._ranks: Final = ranks
        self.nodes: Final[list[Node]] = []
        self.missing: Final[list[str]] = []
        self.promises: Final[list[Promise]] = []
        self._found: dict[int, Ref] = {}
        self._alive: list[object] = []
        """The objects in `_found`: an id is another object's once its own is gone."""
        self._kinds: Final[dict[type, Callable[[object], Node] | None]] = {
            tuple: lambda value: ("t", self._values(cast("tuple[object, ...]", value))),
            list: lambda value: ("l", self._values(cast("list[object]", value))),
            set: lambda value: ("s", self._values(cast("set[object]", value))),
            frozenset: lambda value: ("f", self._values(cast("frozenset[object]", value))),
            dict: lambda value: ("d", *self._pairs(cast("dict[object, object]", value))),
            OrderedDict: lambda value: ("o", *self._pairs(cast("dict[object, object]", value))),
            Counter: lambda value: ("c", *self._pairs(cast("dict[object, object]", value))),
            MappingProxyType: lambda value: ("d", *self._pairs(cast("Mapping[object, object]", value))),
            deque: lambda value: ("q", cast("deque[object]", value).maxlen, self._values(cast("deque[object]", value))),
            array: lambda value: ("a", cast("array[int]", value)[:]),
            np.ndarray: lambda value: ("n", _own(cast("Array", value))),
            ScheduleRequest: lambda value: self._request(cast("ScheduleRequest", value)),
        }
        """By class, as far as they were met; None for those that aren't copied."""

    def value(self, value: object) -> object:
        """The value itself where it is a scalar; otherwise its node's reference, or `_ABSENT`."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if isinstance(value, bytes):
            return bytes(value)  # a peer's blocks are of a class of their own
        found = self._found.get(id(value))
        if found is not None:
            return found
        kinds = self._kinds
        if kind not in kinds:
            kinds[kind] = self._maker(kind, value)
        make = kinds[kind]
        if make is None:
            return _ABSENT
        ref = self._found[id(value)] = Ref(len(self.nodes))
        self._alive.append(value)
        self.nodes.append(())
        self.nodes[ref.index] = make(value)
        return ref

    def _maker(self, kind: type, value: object) -> Callable[[object], Node] | None:
        if isinstance(value, Recency):
            return lambda value: ("r", self._promised(cast("Recency", value)))
        if isinstance(value, Reports):
            return lambda value: ("r", cast("Reports", value).promise_copy())
        name = name_of(kind)
        if isinstance(value, Part):
            return lambda value: ("m", name, value)
        if isinstance(value, BaseModel) or callable(value):  # from the configuration, or code
            return None
        if isinstance(value, Enum):
            return lambda value: ("e", name, cast("Enum", value).value)
        if isinstance(value, np.generic):
            return lambda value: ("g", value)
        if isinstance(value, tuple) and is_known(kind):
            return lambda value: ("N", name, self._values(cast("tuple[object, ...]", value)))
        return self._object if is_known(kind) else None

    def _promised(self, recency: Recency) -> Promise:
        promise = recency.promise()
        self.promises.append(promise)
        return promise

    def _request(self, request: ScheduleRequest) -> Node:
        """A request that waits. Its blocks get other names in the log, by which it would go to another rank: the place
        of its first block is copied beside them."""
        kind, name, names, values = self._object(request)
        if request.beginning is None and self._ranks > 1:
            place = cast("list[str]", names).index("beginning")
            cast("list[object]", values)[place] = request.spread(self._ranks)
        return kind, name, names, values

    def _object(self, value: object) -> Node:
        kind = type(value)
        read = _READERS.get(kind)
        if read is not None:
            try:
                given = read(value)
            except AttributeError:
                pass
            else:
                take = self.value
                frozen = [each if type(each) in SCALARS else take(each) for each in given]
                if _ABSENT not in frozen:
                    return "x", name_of(kind), list(_SLOTS[kind]), frozen
        names: list[str] = []
        values: list[object] = []
        for name in _attributes(kind, value):
            try:
                content = getattr(value, name)
            except AttributeError:  # a slot that was never set
                continue
            frozen = content if type(content) in SCALARS else self.value(content)
            if frozen is not _ABSENT:
                names.append(name)
                values.append(frozen)
            elif not isinstance(content, BaseModel) and not callable(content):
                self.missing.append(f"{kind.__qualname__}.{name}: {type(content).__qualname__}")
        return "x", name_of(kind), names, values

    def _values(self, values: Iterable[object]) -> Values:
        given = list(values)
        kinds = set(map(type, given))
        if SCALARS.issuperset(kinds):
            return given
        if len(kinds) == 1:
            kind: type = kinds.pop()
            if kind is tuple or (issubclass(kind, tuple) and is_known(cast("type", kind))):
                rows = cast("list[tuple[object, ...]]", given)
                if SCALARS.issuperset(map(type, chain.from_iterable(rows))):
                    return Rows("" if kind is tuple else name_of(cast("type", kind)), rows)
        take = self.value
        frozen = [value if type(value) in SCALARS else take(value) for value in given]
        if _ABSENT in frozen:
            self.missing.append(f"{len(frozen)} values: {type(given[0]).__qualname__}")
            return [None if value is _ABSENT else value for value in frozen]
        return frozen

    def _pairs(self, values: Mapping[object, object]) -> tuple[Values, Values]:
        return self._values(values.keys()), self._values(values.values())


def _own(values: Array) -> object:
    return values.copy() if values.flags.writeable else values


_SLOTS: Final[dict[type, tuple[str, ...]]] = {}
_READERS: Final[dict[type, Callable[[object], tuple[object, ...]]]] = {}
"""For classes that have slots only, and several: all of them in one call."""


def _attributes(kind: type, value: object) -> Iterable[str]:
    slots = _SLOTS.get(kind)
    if slots is None:
        every = [slot for base in kind.__mro__ for slot in cast("Iterable[str]", vars(base).get("__slots__", ()))]
        only, without = _ONLY.get(kind), _NOT.get(kind, frozenset())
        slots = tuple([slot for slot in every if slot not in without and (only is None or slot in only)])
        _SLOTS[kind] = slots
        if len(slots) > 1 and not hasattr(value, "__dict__"):
            _READERS[kind] = attrgetter(*slots)
    own = getattr(value, "__dict__", None)
    if own is None:
        return slots
    only, without = _ONLY.get(kind), _NOT.get(kind, frozenset())
    return [*slots, *(name for name in own if name not in without and (only is None or name in only))]
