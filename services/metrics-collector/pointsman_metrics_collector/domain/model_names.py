"""The configured name of a completion's model."""

from collections.abc import Callable
from typing import Final

from pointsman_contracts.ends import AnyEnd, EndTarget
from pointsman_contracts.journey import Target
from pointsman_core.config import Config

OTHER: Final = "other"
"""Replaces every name that isn't configured: names from clients must not create series without end."""
NO_POOL: Final = "-"


class ModelNames:
    """Names of one configuration revision. `serves(pool, model)`: whether engines report the model themselves."""

    def __init__(self, config: Config, serves: Callable[[str, str], bool]) -> None:
        self._pools = frozenset(config.pools)
        self._names = frozenset(config.model_names())
        self._by_target = {
            (model.pool, model.provider, model.served_as or name): name for name, model in config.models.items()
        }
        self._serves = serves

    def served(self, completed: AnyEnd) -> tuple[str, str]:
        """The pool, `-` without one, and the name by which requests and the configuration know the model that served,
        or was asked for."""
        pool = completed.pool if completed.pool in self._pools or completed.pool == NO_POOL else OTHER
        if completed.target is not None:
            return pool, self.of(completed.target)
        return pool, completed.model if completed.model in self._names else OTHER

    def of(self, target: Target | EndTarget) -> str:
        """The name of what serves."""
        name = self._by_target.get((target.pool, target.provider, target.model))
        if name is not None:
            return name
        known = target.model in self._names or (target.pool is not None and self._serves(target.pool, target.model))
        return target.model if known else OTHER
