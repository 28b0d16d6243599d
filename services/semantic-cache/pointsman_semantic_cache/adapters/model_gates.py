"""The models that judge candidates, loaded once for all caches."""

import asyncio
from pathlib import Path

from pointsman_core.config import GateSettings
from pointsman_embedding.made_once import MadeOnce
from pointsman_semantic_cache.adapters.endpoint_gate import EndpointGate
from pointsman_semantic_cache.domain.model_gate import GateUnavailable, ModelGate


class OnnxGate:
    """Implements `ModelGate`."""

    def __init__(self, folder: Path, label: str | None) -> None:
        """`label`: the model's for texts that mean the same. Raises GateUnavailable: the extra isn't installed, or the
        folder isn't a model's."""
        try:
            from pointsman_models.embedding.model_folder import ModelUnusable
            from pointsman_models.embedding.pair_model import ModelFailed, PairModel
        except ImportError as error:
            raise GateUnavailable("install pointsman-semantic-cache[onnx]", str(error)) from error
        try:
            self._model = PairModel(folder, label)
        except ModelUnusable as error:
            raise GateUnavailable(str(error)) from error
        self._failed = ModelFailed
        self.name = self._model.name

    async def compare_texts(self, one: str, other: str) -> float | None:
        """Implements `ModelGate.compare_texts`."""
        try:
            return await self._model.compare_texts(one, other)
        except self._failed as error:
            raise GateUnavailable("the gate's model fails", str(error)) from error

    async def close(self) -> None:
        """End the model's thread."""
        self._model.close()


class ModelGates(MadeOnce[GateSettings, ModelGate]):
    """Without one only identical requests are answered from the cache."""

    def __init__(self) -> None:
        without = "only identical requests are answered from the cache"
        super().__init__("gate", _built, GateUnavailable, without=without)


async def _built(settings: GateSettings) -> ModelGate:
    match settings.use:
        case "onnx":
            # Reading 90 MB would stop the loop.
            return await asyncio.to_thread(OnnxGate, Path(settings.directory or ""), settings.label)
        case "endpoint":
            return EndpointGate(settings.url or "", settings.credential, settings.timeout, private=settings.private)
        case "words":
            raise GateUnavailable("`gate: words` has no model")
