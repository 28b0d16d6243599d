"""The identity of a client, as far as every service may know it."""

from collections.abc import Mapping
from typing import Final, Self

from pointsman_contracts.message import JsonValue, Part, always

IDENTITY: Final = "identity"
"""The attribute of a request (`RequestFacts.attributes`) that identifies its sender. Absent without authentication.

`tenant`, `subject`, `plan`, `key`: texts. `scopes`: list of texts. `models`: list of names and patterns that may be
used; absent: all. `priority`: the highest that a request may hint at; absent: 0. `limits`: name → value, for limits
that take their values from here. `batch`: the batch that the request is a line of; no client can set it. `source`: the
instance that identified the sender. `slo`: the service level of the key, as fields of `RequestFacts`."""
LEVEL: Final = "slo"
LONGEST_NAME: Final = 256
"""Longest tenant, subject or plan that is published, in characters."""


class Identity(Part, frozen=True, kw_only=True):
    """The client of a request, without anything that proves it."""

    tenant: str = always("")
    subject: str = always("")
    """The user or key within the tenant, by name."""
    plan: str = always("")
    key: str = always("")
    """Name of the API key; empty for other credentials."""
    batch: str = always("")
    """Id of the batch that the request is a line of; empty for any other request."""

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, JsonValue]) -> Self | None:
        """From `RequestFacts.attributes`; None without an authenticator."""
        facts = attributes.get(IDENTITY)
        if not isinstance(facts, dict):
            return None
        return cls(
            tenant=_name(facts, "tenant"),
            subject=_name(facts, "subject"),
            plan=_name(facts, "plan"),
            key=_name(facts, "key"),
            batch=_name(facts, "batch"),
        )


def plan_of(attributes: Mapping[str, JsonValue]) -> str:
    """`Identity.plan` alone, for limits that use it; empty without an authenticator."""
    facts = attributes.get(IDENTITY)
    return _name(facts, "plan") if isinstance(facts, dict) else ""


def person(identity: Mapping[str, JsonValue]) -> str:
    """A key for a sender without a tenant: the source that authenticated the subject, and the subject, as in the
    attribute `identity`. Empty for a sender with a tenant, or without a subject."""
    subject = identity.get("subject")
    if identity.get("tenant") or not isinstance(subject, str) or not subject:
        return ""
    source = str(identity.get("source") or "")
    return f"{len(source)}:{source}{subject}"


def _name(facts: dict[str, JsonValue], key: str) -> str:
    value = facts.get(key)
    return value[:LONGEST_NAME] if isinstance(value, str) else ""
