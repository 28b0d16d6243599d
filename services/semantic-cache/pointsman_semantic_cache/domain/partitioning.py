"""Finds the partition of a request: the clients that share its answers."""

from pointsman_contracts.guarding import Guarded
from pointsman_contracts.identity import IDENTITY, person
from pointsman_contracts.journey import Journey
from pointsman_core.config import Cache
from pointsman_semantic_cache.domain.entry import Partition, model_of, place_of
from pointsman_semantic_cache.domain.policy import CachePolicy


def nameless(journey: Journey) -> bool:
    """Whether the client is authenticated without a name. It could be any client, so its answers are never shared."""
    facts = journey.request.attributes.get(IDENTITY)
    if not isinstance(facts, dict) or not facts.get("source"):
        return False
    return not facts.get("tenant") and not person(facts)


def partition_of(journey: Journey, name: str, cache: Cache, policy: CachePolicy, guarded: Guarded | None) -> Partition:
    """`name`: the cache's. `guarded`: the policy and version of the guard before the cache."""
    tenant = subject = ""
    facts = journey.request.attributes.get(IDENTITY)
    if isinstance(facts, dict):
        # Not from `Identity`, which cuts long names.
        tenant = str(facts.get("tenant") or "")
        if not tenant:
            subject = person(facts)
        elif "subject" in cache.per:
            subject = str(facts.get("subject") or "")
    profile = policy.profiles.get(journey.profile or "")
    epoch = profile.epoch if profile else ""
    if guarded is not None:
        # It knows what else it judges by than the configuration: the patterns of its release.
        epoch = f"{epoch}.{guarded.epoch}"
    return Partition(name, place_of(tenant), place_of(subject), model_of(journey.target), epoch)
