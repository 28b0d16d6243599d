"""The rights of a key on these pages."""

import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple, cast

from pydantic import JsonValue

from pointsman_contracts.api_key import ApiKey

SEE: Final = "console"
"""Scope of a key that may look."""
WRITE: Final = "console:write"
"""Scope of a key that may also roll the configuration back, and drain engines."""
LONGEST_KEY: Final = 16384
"""Characters."""


class Right(NamedTuple):
    """The rights of a session."""

    name: str
    """Name of the key, or of the way in which the session was opened."""
    may_write: bool


def digest(key: str) -> str:
    """As keys are stored: SHA-256 in lower-case hexadecimal digits."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def right_of(record: ApiKey, now_ms: int) -> Right | None:
    """The right of a known key; None when it has none, is disabled or has expired."""
    expired = record.expires_ms is not None and record.expires_ms <= now_ms
    if record.disabled or expired or not {SEE, WRITE} & set(record.scopes):
        return None
    return Right(record.id or record.tenant, WRITE in record.scopes)


def configured_key(entries: Iterable[Mapping[str, JsonValue]], wanted: str) -> ApiKey | None:
    """The entry of `api-key-auth`'s `keys` with this digest, as a stored key has it."""
    found: ApiKey | None = None
    for entry in entries:
        known = str(entry.get("sha256", "")).lower().removeprefix("sha256:")
        if hmac.compare_digest(known, wanted):
            found = _record(entry)
    return found


def _record(entry: Mapping[str, JsonValue]) -> ApiKey:
    scopes = cast("list[str]", entry.get("scopes") or [])
    return ApiKey(
        id=str(entry.get("id") or ""),
        tenant=str(entry.get("tenant") or ""),
        scopes=tuple(scopes),
        disabled=bool(entry.get("disabled")),
        expires_ms=_expiry_ms(cast("object", entry.get("expires"))),
    )


def _expiry_ms(value: object) -> int | None:
    """YAML reads a time, or leaves its text. A time that can't be read has passed."""
    if value is None:
        return None
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        return round(at.timestamp() * 1000)
    except ValueError:
        return 0
