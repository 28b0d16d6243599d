"""The duration of a forward pass.

The default coefficients and both formulas are those of the mock engine of NVIDIA Dynamo (`dynamo.mocker`, polynomial
timing), so that results can be compared with `dynamo.replay`. Two more terms, 0 by default, are for engines that are
fitted to a flight log: attention over what came before a chunk, and the cost of each sequence that decodes. Every
duration is in milliseconds.
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
    prefill_pairs: float = 0.0
    """For each pair of a prompt token that is computed and a token before its chunk."""
    decode_sequence: float = 0.0
    """For each sequence that decodes."""

    def prefill_ms(self, tokens: int, pairs: int = 0) -> float:
        """The prefill part of a pass over `tokens` effective prompt tokens (see `effective_prefill_tokens`), which
        attend to what came before their chunks in `pairs` pairs of tokens."""
        duration = self.prefill_quadratic * tokens * tokens + self.prefill_linear * tokens + self.prefill_constant
        return (duration + self.prefill_pairs * pairs) / self.speedup

    def decode_ms(self, occupancy: float, batch: int = 0) -> float:
        """The decode part of a pass whose `batch` decoding sequences hold `occupancy` of the cache (clamped to 1)."""
        p = min(1.0, occupancy)
        duration = self.decode_quadratic * p * p + self.decode_linear * p + self.decode_constant
        return max(1.0, duration + self.decode_sequence * batch) / self.speedup


def effective_prefill_tokens(chunks: Sequence[tuple[int, int]]) -> int:
    """Prompt tokens a pass is charged for, from (tokens already computed, tokens computed now) per sequence.

    The mock engine works with the floor of the mean of both, times the number of sequences.
    """
    count = len(chunks)
    before = sum(prefix for prefix, _ in chunks)
    after = before + sum(chunk for _, chunk in chunks)
    return count * (after // count - before // count)


def attention_pairs(chunks: Sequence[tuple[int, int]]) -> int:
    """Pairs of a token that is computed now and one that was computed before, over sequences as above."""
    return sum(prefix * chunk for prefix, chunk in chunks)
