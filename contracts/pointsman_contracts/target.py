"""The model that serves a request, and its place."""

from pointsman_contracts.message import Part


class Target(Part, frozen=True, kw_only=True):
    """The model of a request, and the pool or provider that serves it."""

    model: str
    """Name that the engine or provider knows the model by."""
    pool: str | None = None
    """Pool of own engines; None when a provider serves the model."""
    provider: str | None = None
    lora: str | None = None
    """The adapter, when `model` is one."""
    base: str | None = None
    """The adapter's base model; None when it is unknown."""
