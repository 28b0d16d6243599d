"""The waiting requests of one priority."""

from typing import Final, Generic, TypeVar

from pointsman_plugins.scheduling.flow_control import FairnessPolicy, OrderingPolicy, Turns
from pointsman_scheduler.domain.flow_control.policy import BandPolicy
from pointsman_scheduler.domain.flow_control.queue import Queue, Waiting

T = TypeVar("T")


class Band(Generic[T]):
    """The flows of one band, each with its queue, and the flow whose turn it is."""

    def __init__(self, priority: int, policy: BandPolicy, now: float) -> None:
        self.priority: Final = priority
        self.policy: Final = policy
        self.requests = 0
        self.bytes = 0
        self.used_at = now
        """When a request last joined."""
        self._fairness: Final[FairnessPolicy] = policy.fairness
        self._ordering: Final[OrderingPolicy] = policy.ordering
        self._turns: Final[Turns] = policy.fairness.turns()
        self._flows: dict[str, Queue[T]] = {}
        self._latest: dict[int, Waiting[T]] = {}
        """By sequence: the last one is the newest."""

    @property
    def flows(self) -> int:
        """Flows with a waiting request."""
        return len(self._flows)

    def has_room(self, size: int) -> bool:
        """Whether one more request of so many bytes may wait."""
        policy = self.policy
        return (policy.settings.max_requests is None or self.requests < policy.settings.max_requests) and (
            policy.settings.max_bytes is None or self.bytes + size <= policy.settings.max_bytes
        )

    def put(self, waiting: Waiting[T], ttl: float, now: float) -> None:
        """Add a request."""
        flow = waiting.flow = self._fairness.flow_of(waiting.item)
        queue = self._flows.get(flow)
        if queue is None:
            queue = self._flows[flow] = Queue()
            self._turns.enter(flow, now)
        queue.push_waiting(self._ordering.key(waiting.item, ttl), waiting)
        self._latest[waiting.sequence] = waiting
        self.requests += 1
        self.bytes += waiting.item.size
        self.used_at = now

    def take(self, now: float) -> Waiting[T]:
        """Remove and return the request whose turn it is. At least one must wait."""
        flow = self._turns.next(now)
        waiting = self._flows[flow].first_waiting()
        if waiting is None:
            raise AssertionError(f"flow {flow!r} has a turn and nothing waiting")
        self._turns.served(waiting.item, flow, now)
        self.remove(waiting)
        return waiting

    def remove(self, waiting: Waiting[T]) -> None:
        """Remove a request, whatever the reason."""
        waiting.live = False
        del self._latest[waiting.sequence]
        queue = self._flows[waiting.flow]
        queue.note_departure()
        if not len(queue):
            del self._flows[waiting.flow]
            self._turns.leave(waiting.flow)
        self.requests -= 1
        self.bytes -= waiting.item.size

    def latest(self) -> Waiting[T] | None:
        """The request that came last."""
        if not self._latest:
            return None
        sequence, waiting = self._latest.popitem()
        self._latest[sequence] = waiting
        return waiting
