"""A configuration revision as this service runs it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pointsman_core.config import DEFAULT_CACHE, Cache, Config, StageUse, active

GUARD: Final = "guard"
GATE: Final = 3
"""Number of what is read of a question: raised when signatures change, so that none is compared with an older one."""
_DECIDE_ANSWERS: Final = {"guards", "stages"}
"""Sections that decide what a client may get, beside the itineraries. The effect of preprocessing is in the request's
fingerprint."""
_TIMES: Final = {"timeout"}
"""Keys with durations, which don't change an answer."""


class ProfilePolicy(NamedTuple):
    """The part of a profile that concerns cached answers."""

    epoch: str
    """Changes with every setting that decides what an answer may say and which guard checks it."""
    guarded: bool
    """A guard looks at answers, and what it says is done."""


class CachePolicy(NamedTuple):
    """Compiled once a revision."""

    caches: Mapping[str, Cache]
    profiles: Mapping[str, ProfilePolicy]
    longest_wait_s: float
    """How long a request may wait for the answer to another one: the edge waits for a decision twice as long."""


def compile_policy(config: Config) -> CachePolicy:
    """Read the configuration once."""
    document = config.model_dump(mode="json", include=_DECIDE_ANSWERS, exclude={"stages": {"__all__": _TIMES}})
    profiles: dict[str, ProfilePolicy] = {}
    for name, profile in config.profiles.items():
        coming_back = (*profile.response, *config.postprocessing)
        identity = [GATE, document, _stages(profile.request), _stages(coming_back)]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        guarded = any(use.service == GUARD and not use.shadow for use in active(coming_back))
        profiles[name] = ProfilePolicy(hashlib.sha256(text.encode()).hexdigest()[:16], guarded)
    return CachePolicy({DEFAULT_CACHE: Cache(), **config.caches}, profiles, config.edge.decision_timeout / 2)


def _stages(itinerary: Sequence[StageUse]) -> list[object]:
    """The stages that can change an answer."""
    return [use.model_dump(mode="json", exclude=_TIMES) for use in active(itinerary)]
