"""The configured embedding models, each loaded once for all that use it."""

import asyncio
import math
from pathlib import Path

import numpy as np

from pointsman_core import lexical
from pointsman_core.config import Embeddings
from pointsman_embedding.embedder import LONGEST, Embedder, EmbedderUnavailable, Vector
from pointsman_embedding.endpoint_embedder import EndpointEmbedder
from pointsman_embedding.made_once import MadeOnce


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

    async def embed_start(self, text: str) -> Vector | None:
        """The vector of the first `LONGEST` characters."""
        return await self.embed(text[:LONGEST])

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
            raise EmbedderUnavailable("install pointsman-embedding[onnx]", str(error)) from error
        try:
            self._model = OnnxModel(folder)
        except ModelUnusable as error:
            raise EmbedderUnavailable(str(error)) from error
        self.name = self._model.name

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for a text that is longer than the model sees."""
        return await self._model.embed_whole(text)

    async def embed_start(self, text: str) -> Vector | None:
        """The vector of as much of the text as the model sees; None for a text without known tokens."""
        (row,) = await self._model.embed((text,))
        return row if row.any() else None

    async def close(self) -> None:
        """End the model's thread."""
        self._model.close()


class Embedders(MadeOnce[Embeddings, Embedder]):
    """The embedder of each setting that a configuration has."""

    def __init__(self, without: str) -> None:
        """`without`: what the service does while an embedder is missing, for the log."""
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
