"""Stands in where there is no model: what two questions share are words, not meanings."""

import math

import numpy as np

from pointsman_core import lexical
from pointsman_semantic_cache.domain.embedding import LONGEST, Vector


class LexicalEmbedder:
    """Hashed words and their beginnings; it finds fewer paraphrases than a model and says so by its name."""

    name = "lexical"
    threshold = 0.75

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for one without words, or longer than `LONGEST`."""
        if len(text) > LONGEST:
            return None
        places = lexical.vector(text)
        length = math.sqrt(sum(weight * weight for weight in places.values()))
        if not length:
            return None
        vector = np.zeros(lexical.PLACES, np.float32)
        for place, weight in places.items():
            vector[place] = weight / length
        return vector

    async def close(self) -> None:
        """As `Embedder.close`."""
