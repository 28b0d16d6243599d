"""Chooses among several collectors the owner of a task: scraping an engine, or publishing that a worker came or left.

Rendezvous hashing: collectors that know the same instances choose the same owner without messages, and an instance that
comes or leaves moves only its own share. https://en.wikipedia.org/wiki/Rendezvous_hashing
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
