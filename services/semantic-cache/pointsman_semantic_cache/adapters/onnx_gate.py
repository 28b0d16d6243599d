"""Compares questions by a model in a folder of this machine."""

from pathlib import Path

from pointsman_semantic_cache.domain.model_gate import GateUnavailable


class OnnxGate:
    """Implements `ModelGate`."""

    def __init__(self, folder: Path, label: str | None) -> None:
        """`label`: the model's for texts that mean the same. Raises GateUnavailable: the extra isn't installed, or the
        folder isn't a model's."""
        try:
            from pointsman_embedding.model_folder import ModelUnusable
            from pointsman_embedding.pair_model import ModelFailed, PairModel
        except ImportError as error:
            raise GateUnavailable("install pointsman-semantic-cache[onnx]", str(error)) from error
        try:
            self._model = PairModel(folder, label)
        except ModelUnusable as error:
            raise GateUnavailable(str(error)) from error
        self._failed = ModelFailed
        self.name = self._model.name

    async def same(self, one: str, other: str) -> float | None:
        """As `ModelGate.same`."""
        try:
            return await self._model.same(one, other)
        except self._failed as error:
            raise GateUnavailable("the gate's model fails", str(error)) from error

    async def close(self) -> None:
        """End the model's thread."""
        self._model.close()
