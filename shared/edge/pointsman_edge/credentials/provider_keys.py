"""Which credential a request to a provider goes with, where the provider has several. Pure; times are seconds of a
clock that never goes back.

A session keeps its credential while that one is taken: services keep cached prompts by account, so that turns which go
round the credentials find none. A credential that is refused pauses alone.
"""

from hashlib import blake2b
from typing import Final

from pointsman_providers.error_status import NO_MODEL, NO_QUOTA
from pointsman_providers.errors import explained, standing_status
from pointsman_providers.limits import ProviderLimits
from pointsman_providers.resolve import Resolved

OF_CREDENTIAL: Final = frozenset({401, NO_QUOTA, 403, NO_MODEL, 429})
"""Statuses (as `true_status` reads them) of refusals that another account may not get."""
LIMITED_S: Final = 5.0
"""Pause of a credential whose limit is reached, where the provider asks for none."""
REFUSED_S: Final = 60.0
"""The same of one that is refused: its operator must mend something."""
LEAST_S: Final = 1.0
_MOST: Final = 4096


class ProviderKeys:
    """The pauses of credentials, by provider, reference and model: limits are for a model."""

    def __init__(self) -> None:
        self._paused: Final[dict[tuple[str, str, str], tuple[float, int]]] = {}
        """Until when, and after which status."""

    def choose_key(self, provider: Resolved, model: str, sticky: str, now: float) -> Resolved:
        """The provider with the credential for a request. `sticky`: what keeps its credential, a session or one
        request. Raises Refusal while all of them pause."""
        if len(provider.credentials) < 2:
            return provider
        free = [each for each in provider.credentials if self._wait(provider, each, model, now) <= 0]
        if not free:
            wait, status = min(
                (self._wait(provider, each, model, now), self._paused[provider.name, each, model][1])
                for each in provider.credentials
            )
            raise explained(provider.name, standing_status(status), wait)
        return provider._replace(credential=max(free, key=lambda reference: _weight(sticky, reference)))

    def record_refusal(
        self, provider: Resolved, model: str, status: int, pause_s: float | None, now: float
    ) -> float | None:
        """Note that the provider's chosen credential was refused; `pause_s` as the provider asked. Returns the pause of
        the provider as a whole: until its first credential may be taken; None where one may be now."""
        pause = max(LEAST_S, pause_s or (LIMITED_S if status == 429 else REFUSED_S))
        place = (provider.name, provider.credential or "", model)
        self._paused.pop(place, None)
        while len(self._paused) >= _MOST:
            del self._paused[next(iter(self._paused))]
        self._paused[place] = now + pause, status
        wait = min(self._wait(provider, each, model, now) for each in provider.credentials)
        return wait if wait > 0 else None

    def _wait(self, provider: Resolved, reference: str, model: str, now: float) -> float:
        paused = self._paused.get((provider.name, reference, model))
        return 0.0 if paused is None else paused[0] - now


def is_of_credential(provider: Resolved, status: int | None) -> bool:
    """Whether an answer with this status is about one of several credentials, so that another one may be taken."""
    return len(provider.credentials) > 1 and status in OF_CREDENTIAL


def limits_of_all(provider: Resolved, told: ProviderLimits) -> ProviderLimits:
    """The limits of a provider, by those that one of its credentials reported. The rest of its quota is unknown where
    the provider has several."""
    return told if len(provider.credentials) < 2 else told._replace(remaining=None)


def _weight(sticky: str, reference: str) -> bytes:
    return blake2b(f"{reference} {sticky}".encode(), digest_size=8).digest()
