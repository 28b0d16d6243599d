"""A block of an engine's cache, by the engine's name and by ours."""

from dataclasses import dataclass, field

from pointsman_worker_agent.domain.kv_wire import EngineHash


@dataclass(slots=True)
class EngineBlock:
    """A block of the engine's that is in one of its caches."""

    parent: int
    """Our hash before the group that it belongs to."""
    mask: int
    """Salt of model and adapter."""
    pending: bytes
    """Tokens of its group up to its end; empty when the group is complete."""
    members: tuple[EngineHash, ...]
    """Blocks of its group up to itself."""
    ours: int | None = None
    """Our hash that ends with this block, unsalted."""
    copies: int = 0
    """On the device."""

    @property
    def salted(self) -> int:
        """Our hash as requests have it."""
        return (self.ours or 0) ^ self.mask


@dataclass(slots=True)
class Delta:
    """Added and removed blocks of one tier, by our salted hashes."""

    stored: list[int] = field(default_factory=list[int])
    removed: list[int] = field(default_factory=list[int])
    tier: str = ""
    """As in `pointsman_contracts.kv.TIERS`; empty for the device."""
