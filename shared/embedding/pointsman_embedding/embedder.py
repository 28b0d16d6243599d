"""Embedders: from a text to a vector."""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
"""A vector of length 1."""


LONGEST: Final = 4096
"""Characters of a text that is compared by meaning. Models see no more than 512 to 8192 tokens, and say so in as many
ways; and what the gate reads of a text is read on the event loop."""


class EmbedderUnavailable(Exception):
    """The embedder is missing or doesn't answer. The text is advice for the operator and never has a prompt."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what} ({detail})" if detail else what)


class Embedder(Protocol):
    """Turns texts into vectors. The product of two vectors is the similarity of their texts, in [-1,1]."""

    name: str
    """Vectors of different names are never compared."""
    threshold: float
    """From which product on two texts are close enough for the gate to look at, unless the configuration says."""

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for a text without words that it knows. Raises EmbedderUnavailable."""
        ...

    async def embed_start(self, text: str) -> Vector | None:
        """The vector of a text, or of its beginning when it is longer than the embedder sees. Raises
        EmbedderUnavailable."""
        ...

    async def close(self) -> None:
        """Release what it holds; it isn't used again."""
        ...
