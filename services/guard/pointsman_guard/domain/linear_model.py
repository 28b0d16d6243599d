"""Logistic regression over hashed n-grams of characters: the hashing trick of Weinberger et al., "Feature Hashing for
Large Scale Multitask Learning", 2009."""

import base64
from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", volume 3, 6.4)."""

Floats = NDArray[np.float32]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: str = Field(pattern="^hashed-ngrams$")
    sizes: tuple[int, ...]
    bits: int = Field(ge=8, le=24)
    bias: float
    weights: str
    """Little-endian 16-bit floats, base64."""


class LinearModel:
    """The weights of the model, by bucket of the hash."""

    def __init__(self, sizes: Sequence[int], bits: int, weights: Floats, bias: float) -> None:
        if len(weights) != 1 << bits or not sizes or min(sizes) < 1:
            raise ValueError("the model needs 2^bits weights, and at least one size, each 1 or more")
        self.sizes: Final = tuple(sizes)
        self.bits: Final = bits
        self.weights: Final = weights
        self.bias: Final = bias

    @classmethod
    def decode_weights(cls, data: bytes) -> Self:
        """The model in a file's content. Raises ValueError."""
        stored = _Stored.model_validate_json(data)
        weights = np.frombuffer(base64.b64decode(stored.weights, validate=True), "<f2").astype(np.float32)
        return cls(stored.sizes, stored.bits, weights, stored.bias)

    def encode(self) -> bytes:
        """The file's content."""
        weights = base64.b64encode(self.weights.astype("<f2").tobytes()).decode()
        stored = _Stored(kind="hashed-ngrams", sizes=self.sizes, bits=self.bits, bias=self.bias, weights=weights)
        return stored.model_dump_json().encode()

    def predict_probability(self, text: str) -> float:
        """Probability that the text belongs to the class that the model finds."""
        buckets = features(text, self.sizes, self.bits)
        if not len(buckets):
            return 0.0
        score = self.bias + float(self.weights[buckets].sum()) / float(np.sqrt(len(buckets)))
        return float(1 / (1 + np.exp(-score)))


def features(text: str, sizes: Sequence[int], bits: int) -> NDArray[np.intp]:
    """The buckets of a text's n-grams, each once. Case and runs of white space don't count."""
    data = np.frombuffer(f" {' '.join(text.lower().split())} ".encode("utf-8", "replace"), np.uint8).astype(np.uint64)
    found: list[NDArray[np.uint64]] = []
    for size in sizes:
        if len(data) < size:
            continue
        gram = np.full(len(data) - size + 1, size, np.uint64)
        for offset in range(size):
            gram = (gram ^ data[offset : len(data) - size + 1 + offset]) * _FACTOR
            gram ^= gram >> np.uint64(29)
        found.append(gram >> np.uint64(64 - bits))
    return np.unique(np.concatenate(found)).astype(np.intp) if found else np.empty(0, np.intp)


def trained(
    texts: Sequence[str],
    labels: Sequence[bool],
    *,
    sizes: Sequence[int] = (2, 3, 4, 5),
    bits: int = 16,
    rounds: int = 60,
) -> LinearModel:
    """Fit by gradient descent with Adagrad's steps (Duchi et al., 2011); both classes have equal weight."""
    if not any(labels) or all(labels):
        raise ValueError("both texts to find and harmless texts are needed")
    rows = [features(text, sizes, bits) for text in texts]
    share = sum(labels) / len(labels)
    weights = np.zeros(1 << bits, np.float32)
    steps = np.full(1 << bits, 1e-6, np.float32)
    bias, bias_step = 0.0, 1e-6
    order = [int(number) for number in np.random.default_rng(1).permutation(len(rows))]
    for _ in range(rounds):
        for number in order:
            row, label = rows[number], labels[number]
            if not len(row):
                continue
            scale = 1 / float(np.sqrt(len(row)))
            probability = 1 / (1 + float(np.exp(-(bias + float(weights[row].sum()) * scale))))
            error = (probability - label) * (0.5 / share if label else 0.5 / (1 - share))
            gradient = error * scale + 1e-4 * weights[row]
            steps[row] += gradient**2
            weights[row] -= 0.3 * gradient / np.sqrt(steps[row])
            bias_step += error**2
            bias -= 0.3 * error / bias_step**0.5
    return LinearModel(sizes, bits, weights, bias)
