"""API keys of clients that are kept beside the configuration."""

from typing import ClassVar, Final

from pydantic import Field

from pointsman_contracts.message import Address, Message

KEYS_BUCKET: Final = "pm-keys"


class ApiKey(Message):
    """Whose an API key is; the key itself is nowhere.

    Value of key `<SHA-256 of the key, 64 hexadecimal digits>` in bucket `pm-keys`, sent by the operator, read by
    preprocessors.
    """

    address: ClassVar[Address] = Address("kv", "api", "key", route=("sha256",), bucket=KEYS_BUCKET)

    id: str = ""
    """Name of the key, in trails and logs."""
    tenant: str
    subject: str = ""
    """Default: `id`."""
    plan: str = ""
    scopes: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    """Names, patterns (`llama-*`) or `group:<group>`; None: all."""
    limits: dict[str, str | float] = Field(default_factory=dict[str, str | float])
    """Name → value, for limits that take their value from the identity."""
    expires_ms: int | None = None
    """Unix milliseconds from which on the key is refused."""
    disabled: bool = False
