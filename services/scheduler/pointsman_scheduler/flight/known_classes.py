"""The classes that a snapshot may name. No other one is made when a log is read: a log is data from outside."""

import sys
from typing import Final

_FAMILIES: Final = (
    "pointsman_contracts",
    "pointsman_delay",
    "pointsman_plugins.scheduling",
    "pointsman_scheduler.domain",
    "pointsman_scheduler.plugins",
)
_OTHERS: Final[set[str]] = set()


class UnknownClassError(Exception):
    """A snapshot names a class that this version doesn't have."""


def allow(module: str) -> None:
    """Allow the classes of a module, too: one that offers plugins."""
    if not is_ours(module):
        _OTHERS.add(module)


def is_ours(module: str) -> bool:
    """Whether the module is one of the scheduler's."""
    return any(module == family or module.startswith(family + ".") for family in _FAMILIES)


def is_known(kind: type) -> bool:
    """Whether a snapshot may hold objects of this class."""
    return is_ours(kind.__module__) or kind.__module__ in _OTHERS


def name_of(kind: type) -> str:
    """The class's name in a snapshot."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find(name: str) -> type:
    """The class of this name. UnknownClassError when there is none, or it isn't allowed. Imports nothing."""
    module_name, _, path = name.partition(":")
    module = sys.modules.get(module_name)
    found: object = module
    for step in path.split("."):
        found = getattr(found, step, None)
    if module is None or not isinstance(found, type) or not is_known(found) or name_of(found) != name:
        raise UnknownClassError(name)
    return found
