"""Chooses the preprocessor that keeps each shard of counts.

Rendezvous hashing (Thaler and Ravishankar, 1998): the live instance whose hash with the shard is highest. When one
leaves, only its shards move, spread over the others.
"""

from collections.abc import Iterable

import xxhash

from pointsman_contracts.limits import SHARDS


def shard_of(text: str) -> int:
    """The shard of a tenant, or of a scope that has none."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) % SHARDS


def keeper_of(shard: int, instances: Iterable[str]) -> str | None:
    """The keeper of a shard; None without instances."""
    return max(instances, key=lambda each: (xxhash.xxh3_64_intdigest(each.encode(), seed=shard), each), default=None)
