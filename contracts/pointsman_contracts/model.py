"""Statistics of a model from its completions, the same for every replica of the model-selector."""

from typing import ClassVar

from pointsman_contracts.message import Address, Message, always


class ModelStatistics(Message, frozen=True, kw_only=True):
    """How one model has been doing. Published by the metrics-collector on change and at least every five seconds.

    Read by the model-selector. Latest wins. Times and rates are of the last `window_s` seconds.
    """

    address: ClassVar[Address] = Address("sig", "model", "statistics", route=("model",))

    model: str
    """Name that requests and the configuration use."""
    source: str
    """Metrics-collector instance."""
    sequence: int
    at_ms: int
    window_s: float = always(300.0)
    requests: int = always(0)
    """Requests that ended in the window."""
    errors: int = always(0)
    """Those of them that ended because the engine or provider failed (5xx, no connection, timeout, cut off)."""
    ttft_ms: float | None = None
    """Mean time to first token; None without an answer in the window."""
    itl_ms: float | None = None
    """Mean time between output tokens."""
    output_tokens: float | None = None
    """Mean length of an answer in tokens."""
    limited_until_ms: int | None = None
    """Until when the provider asks for no more requests (429 with `Retry-After`), unix milliseconds."""
    remaining: float | None = None
    """Part of the provider's request or token quota that is left, in [0,1]; the smaller of the two."""
