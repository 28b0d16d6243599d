"""Randomness, lengths and block names for synthetic workloads."""

import random
from dataclasses import dataclass
from typing import Final

from pointsman_simulator.trace import TraceRequest

TOKENS_PER_SECOND: Final = 80.0
"""Assumed speed of an answer, in tokens a second, when the next turn waits for it."""


@dataclass(slots=True)
class Workshop:
    """Randomness and block names of one workload."""

    random: random.Random
    block_size: int
    count: int
    span_ms: float
    texts: int = 0

    def new_text(self) -> int:
        """A name for content that nothing else shares; its blocks are `name + index`."""
        self.texts += 1
        return self.texts << 24

    def draw_length(self, median: float, spread: float, longest: int = 120_000) -> int:
        """Log-normal; `spread` is the standard deviation of the logarithm."""
        return max(1, min(longest, round(self.random.lognormvariate(0.0, spread) * median)))

    def any_time(self, before: float = 0.0) -> float:
        """A time in the span, or up to `before` ms ahead of it."""
        return self.random.uniform(-before, self.span_ms)

    def is_inside(self, at: float) -> bool:
        return 0.0 <= at < self.span_ms

    def draw_zipf(self, count: int, skew: float = 1.0) -> int:
        """An index below `count`; the first is the most popular."""
        return self.random.choices(range(count), [1 / (rank + 1) ** skew for rank in range(count)])[0]

    def make_request(
        self,
        at: float,
        shared: tuple[int, int],
        own: int,
        prompt_tokens: int,
        output_tokens: int,
        lora: str | None = None,
    ) -> TraceRequest:
        """A prompt that begins with `shared` (text, tokens) and goes on with text `own`, its answer included."""
        text, tokens = shared
        common = min(tokens, prompt_tokens) // self.block_size
        total = (prompt_tokens + output_tokens) // self.block_size
        blocks = [*range(text, text + common), *range(own + common, own + total)]
        return TraceRequest(at, prompt_tokens, output_tokens, blocks, lora)
