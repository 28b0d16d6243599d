"""Maps the claims of a token to an identity."""

from collections.abc import Mapping
from typing import cast

from pydantic import Field, JsonValue

from pointsman_plugins.plugin import Params
from pointsman_preprocessor.domain.identities import Grant, SenderPermissions
from pointsman_preprocessor.domain.request_headers import HIGHEST_PRIORITY


class ClaimNames(Params):
    """The claim for each part of the identity: its name, or a path such as `org.id`."""

    tenant: str = Field(default="tenant", min_length=1)
    subject: str = Field(default="sub", min_length=1)
    plan: str = Field(default="plan", min_length=1)
    scopes: str = Field(default="scope", min_length=1)
    """A list, or a text with spaces between them."""
    models: str = Field(default="models", min_length=1)
    """A list of names, patterns (`llama-*`), `group:<group>` or `alias:<name>`. Without the claim all models may be
    used."""
    priority: str = Field(default="priority", min_length=1)
    """An integer from 0 to 1000: the highest priority that requests may hint at."""
    limits: str = Field(default="limits", min_length=1)
    """An object: name → value, for limits that take their value from the identity."""


def grant_of(claims: Mapping[str, JsonValue], names: ClaimNames, tenant: str) -> Grant:
    """The claims' identity. `tenant`: the token's, when they name none. Raises ValueError for a claim that can't be
    understood, since ignoring it might allow more than intended."""
    limits = _at(claims, names.limits)
    if limits is not None and not isinstance(limits, dict):
        raise ValueError(f"the claim {names.limits} isn't an object")
    models = _at(claims, names.models)
    if isinstance(_at(claims, names.tenant), int):
        # 7 and "7" would be one tenant.
        raise ValueError(f"the claim {names.tenant} isn't a text")  # noqa: TRY004 - a client's value, not a type of ours
    return Grant(
        tenant=_text(claims, names.tenant) or tenant,
        permissions=SenderPermissions(
            plan=_text(claims, names.plan),
            scopes=_words(_at(claims, names.scopes), names.scopes),
            models=None if models is None else _words(models, names.models),
            priority=_priority(_at(claims, names.priority), names.priority),
        ),
        subject=_text(claims, names.subject),
        limits=limits or {},
    )


def _at(claims: Mapping[str, JsonValue], name: str) -> JsonValue:
    # Names are often URLs, which have dots themselves.
    if name in claims:
        return claims[name]
    value: JsonValue = dict(claims)
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _text(claims: Mapping[str, JsonValue], name: str) -> str:
    value = _at(claims, name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"the claim {name} isn't a text")  # noqa: TRY004 - a client's value, not a type of ours
    return str(value)


def _priority(value: JsonValue, name: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= HIGHEST_PRIORITY:
        raise ValueError(f"the claim {name} isn't an integer from 0 to {HIGHEST_PRIORITY}")
    return value


def _words(value: JsonValue, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(cast("list[str]", value))
    raise ValueError(f"the claim {name} isn't a list of texts")
