"""Forgetting cached answers."""

from typing import ClassVar

from pointsman_contracts.message import Address, Message


class CachePurge(Message, frozen=True, kw_only=True):
    """Asks for cached answers to be forgotten. Sent by tools; every replica of the semantic-cache answers with
    `CachePurged`."""

    address: ClassVar[Address] = Address("ctl", "cache", "purge")

    tenant: str | None = None
    """The tenant whose responses are forgotten; an empty name for requests without an identity. None: all tenants."""
    cache: str | None = None
    """Name of one cache; None: all."""


class CachePurged(Message, frozen=True, kw_only=True):
    """The answer to `CachePurge`."""

    address: ClassVar[Address] = Address("ctl", "cache", "purged", route=("inbox",))

    instance: str
    entries: int
    """Number of answers that this instance deleted."""
    problem: str | None = None
    """Why some could not be deleted; None when all were."""
