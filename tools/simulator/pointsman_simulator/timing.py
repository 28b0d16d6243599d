"""The duration of a forward pass.

The default coefficients and both formulas are those of the mock engine of NVIDIA Dynamo (`dynamo.mocker`, polynomial
timing), so that results can be compared with `dynamo.replay`. Every duration is in milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Polynomial pass times, divided by `speedup` (> 0)."""

    prefill_quadratic: float = 4.209989e-07
    prefill_linear: float = 1.518344e-02
    prefill_constant: float = 16.50142
    decode_quadratic: float = -25.74
    decode_linear: float = 54.01
    decode_constant: float = 5.74
    speedup: float = 1.0

    def prefill_ms(self, tokens: int) -> float:
        """The prefill part of a pass over `tokens` effective prompt tokens (see `effective_prefill_tokens`)."""
        duration = self.prefill_quadratic * tokens * tokens + self.prefill_linear * tokens + self.prefill_constant
        return duration / self.speedup

    def decode_ms(self, occupancy: float) -> float:
        """The decode part of a pass whose decoding sequences hold `occupancy` of the cache (clamped to 1)."""
        p = min(1.0, occupancy)
        return max(1.0, self.decode_quadratic * p * p + self.decode_linear * p + self.decode_constant) / (self.speedup)


def effective_prefill_tokens(chunks: Sequence[tuple[int, int]]) -> int:
    """Prompt tokens a pass is charged for, from (tokens already computed, tokens computed now) per sequence.

    The mock engine works with the floor of the mean of both, times the number of sequences.
    """
    count = len(chunks)
    before = sum(prefix for prefix, _ in chunks)
    after = before + sum(chunk for _, chunk in chunks)
    return count * (after // count - before // count)
