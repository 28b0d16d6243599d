"""The identity that a credential proves, and the attribute that holds it."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

import orjson
from pydantic import Field, JsonValue

from pointsman_contracts.identity import LEVEL
from pointsman_core.config import Config
from pointsman_core.config.service_level import ServiceLevel
from pointsman_core.service_level import facts_of_level
from pointsman_plugins.plugin import Params
from pointsman_preprocessor.domain.request_headers import HIGHEST_PRIORITY

LARGEST: Final = 2048
"""Bytes of an identity as JSON: it is sent with the request, whose facts have 64 KiB."""

_GROUP: Final = "group:"


class SenderPermissions(Params):
    """The permissions of a sender."""

    plan: str = ""
    scopes: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    """Names, patterns (`llama-*`), `group:<group>` or `alias:<name>`; default: all."""
    priority: int = Field(default=0, ge=0, le=HIGHEST_PRIORITY)
    """The highest priority that requests may hint at (`nvext.agent_hints.priority`)."""


class Grant(NamedTuple):
    """An identity and its permissions."""

    tenant: str
    permissions: SenderPermissions
    subject: str = ""
    limits: Mapping[str, JsonValue] = {}
    key: str = ""
    """Name of the API key."""
    slo: ServiceLevel | None = None
    """Service level of the sender's requests."""


class ModelGroups:
    """Names of the models of each group: later stages know models by name alone."""

    def __init__(self, config: Config | None = None) -> None:
        self._groups: Final[dict[str, list[str]]] = {}
        for name, model in (config.models if config is not None else {}).items():
            for group in model.groups:
                self._groups.setdefault(group, []).append(name)

    def expand_groups(self, models: Sequence[str]) -> list[JsonValue]:
        """The list with groups written out; a group that doesn't exist has no models."""
        found: dict[str, None] = {}
        for entry in models:
            if entry.startswith(_GROUP):
                found |= dict.fromkeys(self._groups.get(entry.removeprefix(_GROUP), ()))
            else:
                found[entry] = None
        return list(found)


def identity_of(grant: Grant, source: str, groups: ModelGroups) -> dict[str, JsonValue]:
    """The attribute `identity`. Raises ValueError when it is too large."""
    permissions = grant.permissions
    identity: dict[str, JsonValue] = {
        "tenant": grant.tenant,
        "subject": grant.subject,
        "plan": permissions.plan,
        "scopes": list(permissions.scopes),
        "source": source,
    }
    if grant.key:
        identity["key"] = grant.key
    if permissions.models is not None:
        identity["models"] = groups.expand_groups(permissions.models)
    if permissions.priority:
        identity["priority"] = permissions.priority
    if grant.slo is not None:
        level = facts_of_level(grant.slo, permissions.plan or "key")
        identity[LEVEL] = cast("dict[str, JsonValue]", level)
    if grant.limits:
        identity["limits"] = dict(grant.limits)
    try:
        size = len(orjson.dumps(identity))
    except orjson.JSONEncodeError as error:
        # All other values are text.
        raise ValueError(f"`limits`: {error}") from error
    if size > LARGEST:
        raise ValueError(f"the identity has {size} bytes, at most {LARGEST} can travel")
    return identity
