"""The identities of copies: the tenant that a mirror names, lent to requests at the gateway's own door."""

import asyncio
import time
from typing import Final

from pointsman_core.config import Mirror
from pointsman_hosting.lending import Lending
from pointsman_runtime.jetstream.buckets import Bucket

LENT_S: Final = 86_400.0
"""How long a token is lent. It is replaced after half of that."""


class Identities:
    """One token for each mirror. A client's identity is never lent: what copies cost isn't the client's."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket: Final = bucket
        self._lent: Final[dict[str, tuple[str, Mirror, float]]] = {}
        """Token, the policy that it is of, and monotonic seconds at which it is replaced, by name of the mirror."""
        self._lending: Final = asyncio.Lock()

    async def find_token(self, name: str, mirror: Mirror) -> str:
        """The bearer token of a mirror's copies. Raises nats errors and TimeoutError."""
        # Copies of one request come at once, and one token is enough.
        async with self._lending:
            token, lent_to, until = self._lent.get(name, ("", None, 0.0))
            if lent_to != mirror or time.monotonic() >= until:
                token = await Lending(self._bucket, mirror.priority, mirror.priority).lend_identity(
                    "",
                    {
                        "tenant": mirror.tenant,
                        "subject": f"mirror/{name}",
                        "plan": "mirror",
                        "limits": {**mirror.limits},
                    },
                    time.time_ns() // 1_000_000 + round(LENT_S * 1000),
                )
                self._lent[name] = token, mirror, time.monotonic() + LENT_S / 2
            return token

    def forget_token(self, name: str) -> None:
        """Preprocessors don't know the token: the bucket may have lost it. The next copy gets a new one."""
        self._lent.pop(name, None)
