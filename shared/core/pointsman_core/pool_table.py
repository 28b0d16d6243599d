"""The newest snapshot of each pool, as edges, the profile-picker and the model-selector keep it."""

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar


class Snapshot(Protocol):
    """A pool's state at one moment."""

    @property
    def pool(self) -> str:
        """The pool's name."""
        ...

    @property
    def at_ms(self) -> int:
        """When it was taken, unix milliseconds by its sender's clock."""
        ...


S = TypeVar("S", bound=Snapshot)
V = TypeVar("V")


class PoolTable(Generic[S, V]):
    """The reader's view of the newest snapshot, by pool. The latest snapshot wins."""

    def __init__(self, view: Callable[[S, float], V]) -> None:
        """`view` is called once for each snapshot that is kept, with the snapshot and the time of its arrival."""
        self._view: Final = view
        self._taken_ms: Final[dict[str, int]] = {}
        self.views: Final[dict[str, V]] = {}

    def take_snapshot(self, snapshot: S, now_s: float) -> bool:
        """Keep a snapshot, and return True, unless a newer one of the pool is here. `now_s` is monotonic."""
        if snapshot.at_ms < self._taken_ms.get(snapshot.pool, 0):
            return False
        self._taken_ms[snapshot.pool] = snapshot.at_ms
        self.views[snapshot.pool] = self._view(snapshot, now_s)
        return True
