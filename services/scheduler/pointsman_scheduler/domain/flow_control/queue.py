"""A priority queue from which anything can be taken."""

import heapq
from typing import Generic, TypeVar

from pointsman_scheduler.domain.flow_control.item import Item

T = TypeVar("T")

SLACK = 16


class Waiting(Generic[T]):
    """A request in the queues."""

    __slots__ = ("flow", "item", "live", "priority", "sequence")

    def __init__(self, item: Item[T], priority: int, flow: str, sequence: int) -> None:
        self.item = item
        self.priority = priority
        """Priority of its band."""
        self.flow = flow
        """Key of its flow in the band's fairness policy."""
        self.sequence = sequence
        self.live = True
        """False once it has left; a queue drops it when it comes across it."""


class Queue(Generic[T]):
    """Takes the least key first, then the oldest. A request that leaves in another way is dropped when its turn
    comes. All such requests are swept out when they are the larger part, so every operation is O(log n) over time and
    memory follows the number of live ones."""

    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Waiting[T]]] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def push_waiting(self, key: float, waiting: Waiting[T]) -> None:
        """Add a request."""
        heapq.heappush(self._heap, (key, waiting.sequence, waiting))

    def first_waiting(self) -> Waiting[T] | None:
        """The next request, or None."""
        heap = self._heap
        while heap and not heap[0][2].live:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][2] if heap else None

    def note_departure(self) -> None:
        """A request in this queue has just ceased to be live."""
        self._dead += 1
        if self._dead > SLACK + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
            self._dead = 0
