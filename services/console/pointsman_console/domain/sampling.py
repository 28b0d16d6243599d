"""Which events a page shows, of more than it can: an even sample of those that its filters may want.

Events are looked at as bytes. Only those in the sample are decoded: at a thousand decisions a second the others cost
microseconds each.
"""

import random
from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

_ID: Final = b'"request_id":"'
_LEVEL: Final = b'"level":'
_FULL: Final = b'"level":"full"'


class DecisionFilter(NamedTuple):
    """The filters of a page; an empty text matches everything."""

    pool: str = ""
    model: str = ""
    tenant: str = ""
    level: str = ""
    endpoint: str = ""
    reason: str = ""

    @property
    def from_ends(self) -> bool:
        """Whether rows begin with the ends of requests: decisions don't say whose they are."""
        return bool(self.tenant)


class Needles(NamedTuple):
    """Groups of byte strings; an event may match when it has at least one string of each group."""

    groups: tuple[tuple[bytes, ...], ...]
    reason: bytes = b""
    """In lower case."""

    def may_match(self, payload: bytes) -> bool:
        """Whether the filter may want this event."""
        if any(not any(needle in payload for needle in group) for group in self.groups):
            return False
        return not self.reason or self.reason in payload.lower()


def needles_of_decisions(wanted: DecisionFilter) -> Needles:
    """For decisions, rejections and answers of stages. The pool is in the subject."""
    return _needles(wanted, _members(("endpoints", "["), wanted.endpoint), wanted.reason)


def needles_of_ends(wanted: DecisionFilter) -> Needles:
    """For the ends of requests."""
    found = _needles(wanted, _members(("worker", ""), wanted.endpoint), "")
    return Needles((*found.groups, *_members(("tenant", ""), wanted.tenant)))


def _needles(wanted: DecisionFilter, endpoint: Iterable[tuple[bytes, ...]], reason: str) -> Needles:
    model = _value(wanted.model)
    groups = [(b'"model":' + model, b'"lora":' + model, b'"served":' + model)] if wanted.model else []
    groups += [*_members(("level", ""), wanted.level), *endpoint]
    return Needles(tuple(groups), reason.lower().encode())


def _members(member: tuple[str, str], value: str) -> list[tuple[bytes, ...]]:
    name, opening = member
    return [(f'"{name}":{opening}'.encode() + _value(value),)] if value else []


def _value(text: str) -> bytes:
    return orjson.dumps(text)


def request_of(payload: bytes) -> bytes:
    """The id of the request that an event is about, as it is written there; empty when there is none."""
    start = payload.find(_ID)
    if start < 0:
        return b""
    start += len(_ID)
    return payload[start : payload.find(b'"', start)]


class SampleCounts(NamedTuple):
    """Counts since the last look."""

    decisions: int
    impaired: int
    """Decisions whose level isn't `full`. A rejection has no level."""
    fitting: int
    """Events that the filters may want."""


class Reservoir:
    """An even sample of at most `room` of the events that were offered since it was last emptied (algorithm R)."""

    def __init__(self, room: int, seed: int | None = None) -> None:
        self._room: Final = room
        self._random = random.Random(seed)
        self._kept: list[bytes] = []
        self.offered = 0

    def offer_event(self, payload: bytes) -> None:
        """An event came."""
        self.offered += 1
        if len(self._kept) < self._room:
            self._kept.append(payload)
        elif (place := self._random.randrange(self.offered)) < self._room:
            self._kept[place] = payload

    def take_sample(self) -> list[bytes]:
        """The sample; a new one begins."""
        kept, self._kept, self.offered = self._kept, [], 0
        return kept


class Sampler:
    """The events of one page."""

    def __init__(self, wanted: DecisionFilter, room: int, seed: int | None = None) -> None:
        """`room`: events in one sample."""
        self.wanted: Final = wanted
        self._beginnings = needles_of_decisions(wanted)
        self._ends = needles_of_ends(wanted)
        self._sample = Reservoir(room, seed)
        self._followed: dict[bytes, None] = {}
        """Requests on the page whose end it waits for."""
        self._lately: list[dict[bytes, bytes]] = [{}, {}]
        """Ends that came since the last sample and the one before: of requests that may get onto the page."""
        self._decisions = self._impaired = self._fitting = 0

    def sample_decision(self, payload: bytes) -> None:
        """A decision came, or a stage ended a request."""
        self._decisions += 1
        self._impaired += _FULL not in payload and _LEVEL in payload
        if not self.wanted.from_ends and self._beginnings.may_match(payload):
            self._fitting += 1
            self._sample.offer_event(payload)

    def sample_end(self, payload: bytes) -> None:
        """A request ended."""
        if self.wanted.from_ends:
            if self._ends.may_match(payload):
                self._fitting += 1
                self._sample.offer_event(payload)
            return
        self._lately[-1][request_of(payload)] = payload

    def take_sample(self) -> tuple[list[bytes], list[bytes], SampleCounts]:
        """The sample, the ends of requests on the page, and counts; all of it anew from now on."""
        sample = self._sample.take_sample()
        for payload in sample:
            self._followed[request_of(payload)] = None
        ends = [payload for lately in self._lately for request, payload in lately.items() if request in self._followed]
        for payload in ends:
            self._followed.pop(request_of(payload), None)
        while len(self._followed) > FOLLOWED:
            del self._followed[next(iter(self._followed))]
        self._lately = [self._lately[-1], {}]
        seen = SampleCounts(self._decisions, self._impaired, self._fitting)
        self._decisions = self._impaired = self._fitting = 0
        return sample, ends, seen


FOLLOWED: Final = 4000
"""Requests whose ends are waited for; the oldest are given up."""
