"""The embedding models of caches, loaded once for all of them."""

import asyncio
import math
from pathlib import Path

import numpy as np

from pointsman_core import lexical
from pointsman_core.config import Embeddings
from pointsman_semantic_cache.adapters.endpoint_embedder import EndpointEmbedder
from pointsman_semantic_cache.adapters.made_once import MadeOnce
from pointsman_semantic_cache.domain.embedding import LONGEST, Embedder, EmbedderUnavailable, Vector


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
        """Release what it holds; it isn't used again."""


class OnnxEmbedder:
    """Implements `Embedder`."""

    threshold = 0.8

    def __init__(self, folder: Path) -> None:
        """Raises EmbedderUnavailable: the extra isn't installed, or the folder isn't a model's."""
        try:
            from pointsman_models.embedding.model_folder import ModelUnusable
            from pointsman_models.embedding.onnx_model import OnnxModel
        except ImportError as error:
            raise EmbedderUnavailable("install pointsman-semantic-cache[onnx]", str(error)) from error
        try:
            self._model = OnnxModel(folder)
        except ModelUnusable as error:
            raise EmbedderUnavailable(str(error)) from error
        self.name = self._model.name

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for a text that is longer than the model sees."""
        return await self._model.embed_whole(text)

    async def close(self) -> None:
        """End the model's thread."""
        self._model.close()


class Embedders(MadeOnce[Embeddings, Embedder]):
    """Without one only identical requests are answered from the cache."""

    def __init__(self) -> None:
        without = "only identical requests are answered from the cache"
        super().__init__("embedder", _built, EmbedderUnavailable, without=without, hint=_hint)


def _hint(settings: Embeddings) -> str:
    return "it compares words, not meanings; configure `onnx` or `endpoint`" if settings.use == "lexical" else ""


async def _built(settings: Embeddings) -> Embedder:
    match settings.use:
        case "lexical":
            return LexicalEmbedder()
        case "onnx":
            # Reading 90 MB would stop the loop.
            return await asyncio.to_thread(OnnxEmbedder, Path(settings.directory or ""))
        case "endpoint":
            return EndpointEmbedder(
                settings.url or "",
                settings.model or "",
                settings.credential,
                settings.timeout,
                private=settings.private,
            )
