"""Weighted shares of traffic: requests with equal keys get the same profile."""

from typing import Final

from pydantic import Field, PositiveFloat

from pointsman_contracts.identity import IDENTITY
from pointsman_contracts.journey import Journey
from pointsman_core.dealing import Dealer
from pointsman_plugins.plugin import Params


class Share(Params):
    """Profiles with weights, and the key that keeps requests on one profile."""

    split: dict[str, PositiveFloat] = Field(min_length=1)
    """Profile → weight. Order matters when weights change: a key moves only across the borders that moved."""
    sticky: str = Field(default="session", pattern=r"^(request|session|model|header:[A-Za-z0-9-]+|identity:\w+)$")
    """`session`, `identity:<field>`, `header:<name>`, `model`, or `request` (every request anew). A request without
    that value is dealt by its request id."""


class Split:
    """Deals requests to profiles."""

    def __init__(self, share: Share, name: str) -> None:
        """`name` is part of the dealing, so that two splits don't deal alike."""
        kind, _, detail = share.sticky.partition(":")
        self._kind: Final = kind
        self._detail: Final = detail.lower() if kind == "header" else detail
        self._dealer: Final = Dealer(name, share.split)

    def profile_for(self, journey: Journey) -> str:
        """The profile of this request."""
        return self._dealer.arm_of(self._key(journey) or journey.request_id)

    def _key(self, journey: Journey) -> str | None:
        request = journey.request
        match self._kind:
            case "session":
                return request.session
            case "model":
                return journey.wanted
            case "header":
                return request.headers.get(self._detail)
            case "identity":
                identity = request.attributes.get(IDENTITY)
                value = identity.get(self._detail) if isinstance(identity, dict) else None
                return None if value is None else str(value)
            case _:
                return None
