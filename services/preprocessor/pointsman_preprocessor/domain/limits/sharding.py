"""Which preprocessor keeps which counts.

Rendezvous hashing (Thaler and Ravishankar, 1998): of the instances that live, the one whose hash with the shard is
highest. When one goes, its shards alone change hands, spread over the others.
"""

from collections.abc import Iterable

import xxhash

from pointsman_contracts.limits import SHARDS


def shard_of(text: str) -> int:
    """The shard of a tenant, or of a scope that has none."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) % SHARDS


def keeper_of(shard: int, instances: Iterable[str]) -> str | None:
    """Who keeps it; None without instances."""
    return max(instances, key=lambda each: (xxhash.xxh3_64_intdigest(each.encode(), seed=shard), each), default=None)
