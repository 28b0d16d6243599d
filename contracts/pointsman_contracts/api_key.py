"""API keys of clients that are kept beside the configuration."""

from typing import ClassVar, Final, Literal

from msgspec import field

from pointsman_contracts.message import Address, Message, always

KEYS_BUCKET: Final = "pm-keys"


class KeyOwner(Message, frozen=True, kw_only=True):
    """The owner of an API key, and what the key allows."""

    id: str
    """Name of the key, in trails and logs."""
    tenant: str
    subject: str = always("")
    """Default: `id`."""
    plan: str = always("")
    scopes: tuple[str, ...] = always(())
    models: tuple[str, ...] | None = None
    """Names, patterns (`llama-*`), `group:<group>` or `alias:<name>`; None: all."""
    priority: int = always(0)
    """The highest priority that its requests may hint at, 0 to 1000."""
    limits: dict[str, str | float] = field(default_factory=dict[str, str | float])
    """Name → value, for limits that take their value from the identity."""
    slo: dict[str, str | float] | None = None
    """The service level of its requests, as in the configuration's `slo` of a profile."""
    expires_ms: int | None = None
    """Unix milliseconds from which on the key is refused."""
    note: str = always("")
    """For the operator."""


class ApiKey(KeyOwner, frozen=True, kw_only=True):
    """The owner of an API key, and what it allows; the key itself isn't stored.

    Value of key `<SHA-256 of the key, 64 hexadecimal digits>` in bucket `pm-keys`, sent by the operator, read by
    preprocessors.
    """

    address: ClassVar[Address] = Address("kv", "api", "key", route=("sha256",), bucket=KEYS_BUCKET)

    id: str = always("")
    """Name of the key, in trails and logs."""
    disabled: bool = always(False)
    created_ms: int | None = None
    """Unix milliseconds at which it was made."""


class ApiKeyChanged(KeyOwner, frozen=True, kw_only=True):
    """A stored API key was made or revoked. Published by the operator's tools; for any reader. Neither the key nor its
    hash is in it."""

    address: ClassVar[Address] = Address("evt", "api", "key-changed", route=("key",))

    source: str
    """The tool and its process."""
    sequence: int
    """Counts this source's events of this type and key from 1, without gaps."""
    at_ms: int
    action: Literal["created", "revoked"]
