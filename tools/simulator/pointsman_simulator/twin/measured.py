"""An engine that keeps the sizes of its passes, so that the time between two moments is linear in the coefficients.

A pass takes `coefficients · features` milliseconds. The features of a span of time are the sums over its passes, a pass
that is cut at an edge of the span counting in proportion.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pointsman_simulator.engine import EngineConfig, EngineModel
from pointsman_simulator.sequence import Sequence as EngineSequence
from pointsman_simulator.timing import Timing, attention_pairs, effective_prefill_tokens

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

NAMES: Final = (
    "prefill_constant",
    "prefill_linear",
    "prefill_quadratic",
    "prefill_pairs",
    "decode_constant",
    "decode_linear",
    "decode_quadratic",
    "decode_sequence",
)
"""The coefficients of `Timing`, in the order of the features."""
FEATURES: Final = len(NAMES)


def coefficients(timing: Timing) -> Floats:
    """Milliseconds for one unit of each feature; the speed-up is in them."""
    return np.array([getattr(timing, name) for name in NAMES]) / timing.speedup


def timing(values: Floats) -> Timing:
    """The pass times with these coefficients."""
    return replace(Timing(), **dict(zip(NAMES, values.tolist(), strict=True)))


class MeasuredEngine(EngineModel):
    """`EngineModel`, and the features of what it did. Drive it with `submit_at` in order of time, then `finish`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._now = 0.0
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._rows: list[tuple[float, ...]] = []
        self._cumulated: Floats | None = None

    def submit_at(self, sequence: EngineSequence, now: float) -> None:
        """Run to `now` and queue a sequence. ValueError when it can never fit."""
        self._advance(now)
        self.submit_sequence(sequence, now)

    def run_to_end(self) -> None:
        """Run everything to its end."""
        self._advance(float("inf"))
        sums = np.cumsum(np.array(self._rows).reshape(-1, FEATURES), axis=0)
        self._cumulated = np.vstack([np.zeros((1, FEATURES)), sums])

    def features_between(self, since: Floats, until: Floats) -> Floats:
        """Features of each span, a row each; after `finish`."""
        return self._until(until) - self._until(since)

    def _until(self, times: Floats) -> Floats:
        if self._cumulated is None:
            raise RuntimeError("the engine isn't finished")
        if not self._ends:
            return np.zeros((len(times), FEATURES))
        begins, ends = np.array(self._begins), np.array(self._ends)
        index = np.searchsorted(ends, times, side="right")
        current = np.minimum(index, len(ends) - 1)
        part = (times - begins[current]) / (ends[current] - begins[current])
        part = np.where(index < len(ends), np.clip(part, 0.0, 1.0), 0.0)
        whole = self._cumulated[index]
        return whole + part[:, None] * (self._cumulated[current + 1] - self._cumulated[current])

    def _advance(self, until: float) -> None:
        while True:
            if self.pass_ends_at is not None:
                if self.pass_ends_at > until:
                    return
                self._now = self.pass_ends_at
                self.finish_pass()
            self._skip(until)
            ends_at = self.begin_pass(self._now)
            if ends_at is None:
                self._now = max(self._now, until) if until < float("inf") else self._now
                return
            self._note(self._now, ends_at, self._features_of_pass())

    def _skip(self, until: float) -> None:
        batch = len(self.running)
        tokens = float(sum(sequence.computed for sequence in self.running))
        before = self.counters.passes
        skipped_to = self.skip_decodes(self._now, until)
        count = self.counters.passes - before
        if not count:
            return
        # The context grows by the batch with each pass: sums of 1, n and n² over 0 ≤ n < count.
        first, second = count * (count - 1) / 2, (count - 1) * count * (2 * count - 1) / 6
        linear = (count * tokens + batch * first) / self._capacity
        square = (count * tokens**2 + 2 * tokens * batch * first + batch**2 * second) / self._capacity**2
        self._note(self._now, skipped_to, (0.0, 0.0, 0.0, 0.0, count, linear, square, count * batch))
        self._now = skipped_to

    def _features_of_pass(self) -> tuple[float, ...]:
        chunks = [(sequence.computed, tokens) for sequence, tokens in self._plan if not sequence.decoding]
        decoding = len(self._plan) - len(chunks)
        context = sum(sequence.computed for sequence, _ in self._plan if sequence.decoding) / self._capacity
        prefill: Sequence[float] = (0.0, 0.0, 0.0, 0.0)
        if chunks:
            tokens = effective_prefill_tokens(chunks)
            prefill = (1.0, tokens, tokens * tokens, attention_pairs(chunks))
        share = min(1.0, context)
        decode = (1.0, share, share * share, decoding) if decoding else (0.0, 0.0, 0.0, 0.0)
        return (*prefill, *decode)

    def _note(self, begin: float, end: float, features: tuple[float, ...]) -> None:
        if end > begin:
            self._begins.append(begin)
            self._ends.append(end)
            self._rows.append(features)
