"""The scope that a request is counted in: the values of a limit's scopes."""

import hashlib
import re
from typing import Annotated, Final

from pydantic import AfterValidator

from pointsman_contracts.identity import person
from pointsman_core.plugins import unknown
from pointsman_limits.domain.limits.sharding import shard_of
from pointsman_plugins.preprocessing import IDENTITY, Incoming

_TENANT: Final = "tenant"
OF_IDENTITY: Final = (_TENANT, "subject", "plan")
_MODEL: Final = "model"
_HEADER: Final = "header:"
_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_LONGEST: Final = 128
"""Values of at most this many characters are kept; longer ones are hashed."""
_MOST_KEPT: Final = 8192
"""Number of scopes whose shard is cached."""


def checked(scope: str) -> str:
    """Raises ValueError for an invalid scope."""
    lowered = scope.lower()
    if lowered.startswith(_HEADER) and _HEADER_NAME.fullmatch(lowered.removeprefix(_HEADER)):
        return lowered
    if scope not in (*OF_IDENTITY, _MODEL):
        raise ValueError(unknown("scope", scope, (*OF_IDENTITY, _MODEL, f"{_HEADER}<name>")))
    return scope


ScopeName = Annotated[str, AfterValidator(checked)]


class Scopes:
    """The scopes of one limit."""

    def __init__(self, limit: str, names: tuple[str, ...]) -> None:
        self._limit: Final = limit
        self.names: Final = names
        self.need_identity: Final = any(name in OF_IDENTITY for name in names)
        self._fixed: Final = None if names else ("", shard_of(f"limit {limit}"))
        self._places: Final[dict[tuple[str, ...], tuple[str, int]]] = {}

    def values_of(self, incoming: Incoming) -> tuple[str, int]:
        """The values as one text, and the shard: that of the tenant, so that all of a tenant's counts are together.
        A sender without a tenant has a count of its own; other requests without a value share one count."""
        if self._fixed is not None:
            return self._fixed
        identity = incoming.read(IDENTITY) or {}
        values: list[str] = []
        tenant: str | None = None
        for name in self.names:
            if name == _MODEL:
                value = incoming.model
            elif name in OF_IDENTITY:
                value = str(identity.get(name) or "")
            else:
                # A header may hold a credential.
                value = _digest(incoming.envelope.headers.get(name.removeprefix(_HEADER), ""))
            if name == _TENANT:
                if not value and (sender := person(identity)):
                    # No tenant's name begins like this.
                    value = f"\0{sender}"
                tenant = value
            values.append(value if len(value) <= _LONGEST else _digest(value))
        key = tuple(values)
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_KEPT:
                self._places.clear()
            text = "".join([f"{len(value)}:{value}" for value in values])
            shard = shard_of(f"tenant {tenant}" if tenant is not None else f"limit {self._limit} {text}")
            place = self._places[key] = text, shard
        return place

    def __str__(self) -> str:
        return f" per {', '.join(self.names)}" if self.names else ""


def _digest(value: str) -> str:
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() if value else ""
