"""Which of several collectors does what only one should do: scrape an engine, tell that a worker came or went.

Rendezvous hashing: everybody who knows the same instances names the same owner, without a word between them, and
an instance that comes or goes moves only its own share.
https://en.wikipedia.org/wiki/Rendezvous_hashing
"""

from collections.abc import Iterable
from hashlib import blake2b


def owner(pool: str, worker: str, instances: Iterable[str]) -> str:
    """The instance that answers for this worker. Raises ValueError without an instance."""
    key = f"{pool}\0{worker}".encode()
    return max(instances, key=lambda instance: (blake2b(instance.encode(), key=_fit(key)).digest(), instance))


def _fit(key: bytes) -> bytes:
    """blake2b takes keys of 64 bytes."""
    return key if len(key) <= 64 else blake2b(key).digest()
