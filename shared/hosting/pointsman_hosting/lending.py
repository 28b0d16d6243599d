"""Lends an identity to requests that a service sends to the gateway's own door: a batch's, a queue's, a mirror's."""

import hashlib
import secrets
from typing import Final

from pointsman_contracts.batch import LENT_PREFIX, LentIdentity
from pointsman_contracts.message import JsonValue
from pointsman_runtime.jetstream.buckets import Bucket

AFTER_END_MS: Final = 3_600_000
"""An identity is lent until this long after its time."""


class Lending:
    """Makes bearer tokens. A token is in the memory of this process alone, its hash in the bucket: what reads the
    bucket can't send requests. Methods raise nats errors and TimeoutError."""

    def __init__(self, bucket: Bucket, priority: int, urgent_priority: int) -> None:
        self._bucket: Final = bucket
        self._priorities: Final = priority, urgent_priority

    async def lend_identity(
        self, batch: str, identity: dict[str, JsonValue], expires_ms: int, *, urgent: bool = False
    ) -> str:
        """A token with which requests have this identity, until some time after `expires_ms`. `batch`: empty for
        requests of none. `urgent`: they risk to expire."""
        token = f"{LENT_PREFIX}{secrets.token_urlsafe(32)}"
        lent = LentIdentity(
            batch=batch,
            identity=identity,
            priority=self._priorities[urgent],
            expires_ms=expires_ms + AFTER_END_MS,
        )
        await self._bucket.put(_digest(token), lent.encode())
        return token

    async def take_back(self, token: str) -> None:
        """End the token's use."""
        await self._bucket.delete(_digest(token))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
