"""A request as the scheduler sees it."""

from typing import Final, Literal, TypeVar

import numpy as np
from msgspec import Struct, field

from pointsman_contracts.journey import RequestFacts
from pointsman_core.plugins import Key
from pointsman_plugins.scheduling.arrays import Blocks, Floats

T = TypeVar("T")

Wish = Literal["lora", "session", "subset"]
"""A fact that few requests have."""
RequestKey = tuple[str, str]
"""The edge that a request came to, and its id: clients choose ids, and two edges may have the same one at once."""

_NO_BLOCKS: Blocks = np.empty(0, dtype=np.uint64)
_NO_FACTS: Final = RequestFacts(api="", stream=True)


class ScheduleRequest(Struct, eq=False):
    """One request while it is scheduled: its facts, and the attributes that producers add."""

    request_id: str
    facts: RequestFacts = _NO_FACTS
    """As the preprocessor found them."""
    model: str = ""
    """Name that the engine knows the model by."""
    lora: str | None = None
    blocks: Blocks = field(default_factory=lambda: _NO_BLOCKS)
    """`facts.blocks` as numbers: chained hashes of the full prompt blocks, salted by model, adapter and tenant."""
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
    fetched: dict[str, Floats] | None = None
    """Prompt tokens that each worker would fetch from a tier below its device, by tier, after those on the device. None
    where no worker would fetch any."""
    believed_output: int | None = None
    """The longest answer that predictions count on, where a hint says more than the client's limit; None otherwise."""
    attributes: dict[str, object] = {}

    def reached(self, matched: Floats) -> Floats:
        """Prompt tokens that each worker needn't compute: `matched` ones on its device, and those that it fetches."""
        if self.fetched is None:
            return matched
        return matched + sum(self.fetched.values())

    @property
    def longest_output(self) -> int | None:
        """The longest answer that predictions count on, in tokens; None where nothing bounds it."""
        return self.facts.max_output_tokens if self.believed_output is None else self.believed_output

    @property
    def key(self) -> RequestKey:
        """Its identity among all requests."""
        return self.edge, self.request_id

    @property
    def plain(self) -> bool:
        """Whether it has none of the facts of `Wish`."""
        return self.lora is None and self.facts.session is None and self.facts.subset is None

    def wishes(self, fact: Wish) -> bool:
        match fact:
            case "lora":
                return self.lora is not None
            case "session":
                return self.facts.session is not None
            case "subset":
                return self.facts.subset is not None

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
