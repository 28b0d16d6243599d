"""The scope of a request for a budget: the same when it is reserved and when its cost is added."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, JsonValue

from pointsman_contracts.identity import LONGEST_NAME
from pointsman_core.plugins import unknown
from pointsman_limits.domain.limits.sharding import shard_of

OF_IDENTITY: Final = ("tenant", "key", "subject", "plan")
MODEL: Final = "model"
_MOST_KEPT: Final = 8192
"""Number of scopes whose shard is cached."""


def _checked(scope: str) -> str:
    if scope not in (*OF_IDENTITY, MODEL):
        raise ValueError(unknown("scope of a budget", scope, (*OF_IDENTITY, MODEL)))
    return scope


BudgetScopeName = Annotated[str, AfterValidator(_checked)]


class BudgetScopes:
    """The scopes of one budget."""

    def __init__(self, limit: str, names: Sequence[str]) -> None:
        self.names: Final = tuple(names)
        self.need_identity: Final = any(name in OF_IDENTITY for name in names)
        self._limit: Final = limit
        self._places: Final[dict[tuple[str, ...], tuple[str, int]]] = {}

    def values_of(self, identity: Mapping[str, JsonValue], model: str) -> tuple[str, int]:
        """The values as one text, and the shard: that of the tenant, so that all of a tenant's budgets are together. A
        client without a tenant, or without a key, has an account by its subject."""
        values: list[str] = []
        for name in self.names:
            value = model if name == MODEL else _text(identity.get(name))
            if not value and name in ("tenant", "key") and (subject := _text(identity.get("subject"))):
                # No name begins like this.
                value = f"\0{subject}"
            values.append(value)
        key = tuple(values)
        found = self._places.get(key)
        if found is None:
            if len(self._places) >= _MOST_KEPT:
                self._places.clear()
            text = "".join([f"{len(value)}:{value}" for value in values])
            tenant = values[self.names.index("tenant")] if "tenant" in self.names else None
            shard = shard_of(f"tenant {tenant}" if tenant is not None else f"limit {self._limit} {text}")
            found = self._places[key] = text, shard
        return found

    def parse_scope(self, text: str) -> dict[str, str]:
        """The values of a scope by their names; empty for the shared one."""
        found: dict[str, str] = {}
        for name in self.names:
            size, colon, rest = text.partition(":")
            if not colon or not size.isdecimal():
                return {}
            found[name], text = rest[: int(size)].lstrip("\0"), rest[int(size) :]
        return found

    def __str__(self) -> str:
        return f" per {', '.join(self.names)}" if self.names else ""


def _text(value: JsonValue) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) else ""
