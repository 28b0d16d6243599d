"""The models of a configuration that compare questions, each made once."""

import asyncio
from pathlib import Path

from pointsman_core.config import Gate
from pointsman_semantic_cache.adapters.endpoint_gate import EndpointGate
from pointsman_semantic_cache.adapters.made_once import MadeOnce
from pointsman_semantic_cache.adapters.onnx_gate import OnnxGate
from pointsman_semantic_cache.domain.model_gate import GateUnavailable, ModelGate


class ModelGates(MadeOnce[Gate, ModelGate]):
    """Without one only the very same requests are answered again."""

    def __init__(self) -> None:
        without = "only the very same requests are answered again"
        super().__init__("gate", _built, GateUnavailable, without=without)


async def _built(settings: Gate) -> ModelGate:
    match settings.use:
        case "onnx":
            # Reading 90 MB would stop the loop.
            return await asyncio.to_thread(OnnxGate, Path(settings.directory or ""), settings.label)
        case "endpoint":
            return EndpointGate(settings.url or "", settings.credential, settings.timeout, private=settings.private)
        case "words":
            raise GateUnavailable("`gate: words` has no model")
