"""API keys of clients, made."""

import hashlib
import json
import secrets
from typing import Final

from pointsman_contracts.api_key import ApiKey

PREFIX: Final = "pm-"
"""So that a scanner for leaked secrets knows one when it sees it."""
_BYTES: Final = 32


def made(record: ApiKey) -> tuple[str, str, str]:
    """A new key, its hash, and its entry for `api-key-auth` as YAML on one line."""
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return key, digest, json.dumps({"sha256": digest, **record.model_dump(exclude_defaults=True, mode="json")})
