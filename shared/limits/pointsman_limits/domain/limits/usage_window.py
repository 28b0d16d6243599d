"""Counts tokens over a window that slides, in slots of a 60th of it.

Usage belongs to the slot in which it was reserved: a later settlement corrects that slot, so that the window is the
same as if the real usage had been known from the start. A request's usage beyond its
reservation belongs to the slot in which that became known. The oldest slot counts by the part of it that is still
inside.
"""

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final

SLOTS: Final = 60
"""Slots in a window: the count is off by at most a 60th of the period's amount."""


class UsageWindow:
    """The tokens of one scope. Usage may exceed any amount (debt)."""

    __slots__ = ("_first", "_slots", "_total", "width")

    def __init__(self, period_s: float, first: int = 0, slots: Iterable[float] = ()) -> None:
        self.width: Final = period_s / SLOTS
        self._first = first
        self._slots: deque[float] = deque(slots)
        self._total = sum(self._slots)

    @property
    def export_slots(self) -> tuple[int, tuple[float, ...]]:
        """Number of the oldest slot, and the usage in each from it on."""
        return self._first, tuple(self._slots)

    def used_now(self, now: float) -> float:
        """Tokens in the window that ends now."""
        place = now / self.width
        oldest = int(place) - SLOTS
        if self._first < oldest:
            self._forget(oldest)
        slots = self._slots
        if not slots:
            return 0.0
        # Of the oldest slot, a part has already left.
        left = self._total - slots[0] * (place - int(place)) if self._first == oldest else self._total
        return max(0.0, left)

    def seconds_until_room(self, amount: float, cost: float, now: float) -> float:
        """Seconds until `cost` more fit into `amount`; 0 now, infinite never."""
        excess = self.used_now(now) + cost - amount
        if excess <= 0:
            return 0.0
        if cost > amount:
            return inf
        # The slots leave one after the other, each at an even rate.
        gone = -self._leaving(now)
        for offset, tokens in enumerate(self._slots):
            if gone + tokens >= excess and tokens > 0:
                part = (excess - gone) / tokens
                return max(0.0, (self._first + offset + SLOTS + part) * self.width - now)
            gone += tokens
        return max(0.0, (self._first + len(self._slots) + SLOTS) * self.width - now)

    def add_usage(self, tokens: float, now: float) -> None:
        slot = int(now / self.width)
        if self._first < slot - SLOTS:
            self._forget(slot - SLOTS)
        slots = self._slots
        if not slots:
            self._first = slot
        offset = slot - self._first
        if offset >= len(slots):
            slots.extend([0.0] * (offset - len(slots) + 1))
        # After a clock went back, the oldest slot may be a later one.
        slots[max(offset, 0)] += tokens
        self._total += tokens

    def subtract_usage(self, tokens: float, at: float, now: float) -> None:
        """Subtract from the usage that was added at `at`. Usage outside the window is settled already."""
        oldest = int(now / self.width) - SLOTS
        if self._first < oldest:
            self._forget(oldest)
        slots, offset = self._slots, int(at / self.width) - self._first
        if 0 <= offset < len(slots):
            taken = min(tokens, slots[offset])
            slots[offset] -= taken
            self._total -= taken

    def used_and_wait(self, now: float) -> tuple[float, float]:
        """`used`, and the seconds until the window is empty."""
        used, slots = self.used_now(now), self._slots
        last = len(slots)
        while last and slots[last - 1] <= 0:
            last -= 1
        return used, max(0.0, (self._first + last + SLOTS) * self.width - now) if last else 0.0

    def _forget(self, oldest: int) -> None:
        """Drop the slots before this one."""
        slots = self._slots
        if oldest - self._first >= len(slots):
            slots.clear()
            self._first, self._total = oldest, 0.0
        while self._first < oldest:
            self._total -= slots.popleft()
            self._first += 1

    def _leaving(self, now: float) -> float:
        """Tokens of the oldest slot that have already left."""
        place = now / self.width
        if not self._slots or self._first != int(place) - SLOTS:
            return 0.0
        return self._slots[0] * (place - int(place))
