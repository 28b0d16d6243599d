"""All pools of one scheduler."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex

REVISIONS_KEPT: Final = 8
"""Configuration revisions that may still decide for requests that started with them."""
BLOCK_TOKENS: Final = 64


class _OnFirstUse(dict[str, PoolScheduler]):
    """Makes a pool when it is first looked up. `make` enters it here before anything looks it up again."""

    def __init__(self, make: Callable[[str], PoolScheduler]) -> None:
        self._make: Final = make

    def __missing__(self, name: str) -> PoolScheduler:
        return self._make(name)


class Pools:
    """Creates a pool's state on first use: workers may register before the configuration names their pool."""

    def __init__(
        self, scheduler: str, index_bytes: int, created: Callable[[PoolScheduler], None] | None = None
    ) -> None:
        """`created` is called with each new pool, before it knows anything."""
        self._created: Final = created
        self._scheduler: Final = scheduler
        self._index_bytes: Final = index_bytes
        self._pools: Final = _OnFirstUse(self._create)
        self.get: Final = self._pools.get
        """The pool of this name, or None when no event has named it yet."""
        self.of: Final = self._pools.__getitem__
        """The pool of this name, created if necessary."""
        self._revisions: deque[Mapping[str, Policy]] = deque(maxlen=REVISIONS_KEPT)
        self._block_tokens: Mapping[str, int] = {}

    def __iter__(self) -> Iterator[PoolScheduler]:
        return iter(tuple(self._pools.values()))

    def block_tokens(self, pool: str) -> int:
        """Tokens in a block of this pool's prefix index."""
        return self._block_tokens.get(pool, BLOCK_TOKENS)

    def use(self, policies: Mapping[str, Policy], block_tokens: Mapping[str, int]) -> None:
        """A configuration revision came into force. State is kept."""
        self._revisions.append(policies)
        self._block_tokens = block_tokens
        for pool in self:
            self._tell_facts(pool)

    def _create(self, name: str) -> PoolScheduler:
        pool = self._pools[name] = PoolScheduler(name, self._scheduler, PrefixIndex(max_bytes=self._index_bytes))
        if self._created is not None:
            self._created(pool)
        self._tell_facts(pool)
        return pool

    def _tell_facts(self, pool: PoolScheduler) -> None:
        pool.use(revision[pool.pool] for revision in self._revisions if pool.pool in revision)
        pool.measure(self.block_tokens(pool.pool))
