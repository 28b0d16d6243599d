"""A request as the scheduler sees it."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from msgspec import Struct, field

from pointsman_core.plugins import Key
from pointsman_plugins.scheduling.arrays import Blocks

T = TypeVar("T")

RequestKey = tuple[str, str]
"""The edge that a request came to, and its id: clients choose ids, and two edges may have the same one at once."""

_NO_BLOCKS: Blocks = np.empty(0, dtype=np.uint64)
_NO_HEADERS: Mapping[str, str] = {}


class ScheduleRequest(Struct, eq=False):
    """Facts about one request, and the attributes that producers add while it is scheduled."""

    request_id: str
    model: str = ""
    """Name that the engine knows the model by."""
    lora: str | None = None
    prompt_tokens: int = 0
    tokens_exact: bool = False
    """Whether a tokenizer counted `prompt_tokens`; otherwise it is estimated."""
    max_output_tokens: int | None = None
    stream: bool = True
    blocks: Blocks = field(default_factory=lambda: _NO_BLOCKS)
    """Chained hashes of the full prompt blocks, salted by model, adapter and tenant."""
    block_tokens: int = 64
    blocks_precise: bool = False
    """Whether engines' KV events use the same names for `blocks`."""
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    """Lower-case names."""
    session: str | None = None
    priority: int = 0
    fairness_id: str = ""
    body_bytes: int = 0
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    subset: tuple[str, ...] | None = None
    """Endpoints (`host` or `host:port`) that the choice is restricted to; None for no restriction."""
    workers: tuple[str, ...] | None = None
    """Names of the workers that another party has chosen; None: the scheduler chooses."""
    features: tuple[str, ...] = ()
    edge: str = ""
    """Instance of the edge that waits for the decision."""
    attempt: int = 1
    queued_s: float = 0.0
    """Seconds that it has waited in flow control."""
    beginning: int | None = None
    """A number that prompts with the same first block share, where `blocks` have other names than when the request
    came; None otherwise."""
    bound: str | None = None
    """Worker that the request has waited for and goes to now if it still may; empty for one that waited and goes to the
    best; None for one that didn't wait."""
    attributes: dict[str, object] = {}

    @property
    def key(self) -> RequestKey:
        """Its identity among all requests."""
        return self.edge, self.request_id

    def spread(self, places: int) -> int | None:
        """A place in [0, places), the same for prompts with the same first block; None for a prompt without blocks."""
        if self.beginning is not None:
            return self.beginning % places
        return int(self.blocks[0]) % places if len(self.blocks) else None

    def get(self, key: Key[T]) -> T:
        """The value of an attribute that the caller declared in `consumes`. Raises KeyError when no plugin produced
        it."""
        return self.attributes[key.name]  # pyright: ignore[reportReturnType] - its producer declared the type

    def put(self, key: Key[T], value: T) -> None:
        """Set an attribute that the caller declared in `produces`."""
        self.attributes[key.name] = value
