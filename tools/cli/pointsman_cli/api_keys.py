"""API keys of clients."""

import hashlib
import json
import secrets
from typing import Final

PREFIX: Final = "pm-"
"""So that a scanner for leaked secrets knows one when it sees it."""
_BYTES: Final = 32


def made(tenant: str, name: str) -> tuple[str, str]:
    """A new key, and its entry for the configuration as YAML on one line."""
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    entry = {"sha256": digest, **({"id": name} if name else {}), "tenant": tenant}
    return key, json.dumps(entry)
