"""Responses of `/v1/responses` that engines keep, so that a later request may continue one by its id."""

from typing import ClassVar, Final

from pointsman_contracts.message import Address, Message, always

RESPONSES_BUCKET: Final = "pm-responses"
KEPT_S: Final = 21_600.0
"""An engine keeps its responses in memory: after so many seconds an entry is removed."""
MOST_BYTES: Final = 64 * 2**20
"""Bytes of the bucket. When it is full no further responses are written, and only the edge that served one knows it."""


class KeptResponse(Message, frozen=True, kw_only=True):
    """The engine that made a response and keeps it. It has names and hashes, no text.

    Value of key `<SHA-256 of the response's id, 64 hexadecimal digits>` in bucket `pm-responses`, published by the edge
    that served the response, read by edges.
    """

    address: ClassVar[Address] = Address("kv", "response", "kept", route=("sha256",), bucket=RESPONSES_BUCKET)

    model: str
    """The name that its client asked for."""
    pool: str = always("")
    """Empty for a provider's response."""
    worker: str = always("")
    """Empty where the worker isn't known."""
    boot_id: str = always("")
    """The engine's `WorkerRegistration.boot_id` when it made the response: an engine that restarted has lost it. Empty:
    unknown."""
    tokens: int | None = None
    """Tokens of its prompt and answer together, as the engine counted them; None: it didn't tell."""
    owner: str = always("")
    """SHA-256 of tenant and subject of the client; empty for a client without an identity."""
