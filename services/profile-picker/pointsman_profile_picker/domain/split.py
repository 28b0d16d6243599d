"""Weighted shares of traffic that stick: the same key gets the same arm for as long as the weights stay."""

import hashlib
from itertools import accumulate
from typing import Final

from pydantic import Field, PositiveFloat

from pointsman_contracts.journey import Journey
from pointsman_core.plugins import Params

_RANGE: Final = 2.0**64


class Share(Params):
    """Arms with weights, and what a request sticks by."""

    split: dict[str, PositiveFloat] = Field(min_length=1)
    """Profile → weight. Order matters when weights change: a key moves only across the borders that moved."""
    sticky: str = Field(default="session", pattern=r"^(request|session|model|header:[A-Za-z0-9-]+|identity:\w+)$")
    """`session`, `identity:<field>`, `header:<name>`, `model`, or `request` (every request anew). A request without
    that value is dealt by its request id."""


class Split:
    """Deals keys to arms. Equal for every replica and in every life of a process."""

    def __init__(self, share: Share, name: str) -> None:
        """`name` is part of the dealing, so that two splits don't deal alike."""
        self._name: Final = name
        kind, _, detail = share.sticky.partition(":")
        self._kind: Final = kind
        self._detail: Final = detail.lower() if kind == "header" else detail
        total = sum(share.split.values())
        self._borders: Final = [
            (border / total, arm) for border, arm in zip(accumulate(share.split.values()), share.split, strict=True)
        ]

    def arm(self, journey: Journey) -> str:
        """The profile of this request."""
        key = self._key(journey) or journey.request_id
        digest = hashlib.blake2b(f"{self._name}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / _RANGE
        return next((arm for border, arm in self._borders if place < border), self._borders[-1][1])

    def _key(self, journey: Journey) -> str | None:
        request = journey.request
        match self._kind:
            case "session":
                return request.session
            case "model":
                return journey.model
            case "header":
                return request.headers.get(self._detail)
            case "identity":
                identity = request.attributes.get("identity")
                value = identity.get(self._detail) if isinstance(identity, dict) else None
                return None if value is None else str(value)
            case _:
                return None
