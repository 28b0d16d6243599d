"""Embeds questions by a model in a folder of this machine."""

from pathlib import Path

from pointsman_semantic_cache.domain.embedding import EmbedderUnavailable, Vector


class OnnxEmbedder:
    """Implements `Embedder`."""

    threshold = 0.8

    def __init__(self, folder: Path) -> None:
        """Raises EmbedderUnavailable: the extra isn't installed, or the folder isn't a model's."""
        try:
            from pointsman_embedding.model_folder import ModelUnusable
            from pointsman_embedding.onnx_model import OnnxModel
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
