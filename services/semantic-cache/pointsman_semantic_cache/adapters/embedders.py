"""The embedders of a configuration, each made once."""

import asyncio
from pathlib import Path

from pointsman_core.config import Embeddings
from pointsman_semantic_cache.adapters.endpoint_embedder import EndpointEmbedder
from pointsman_semantic_cache.adapters.lexical_embedder import LexicalEmbedder
from pointsman_semantic_cache.adapters.made_once import MadeOnce
from pointsman_semantic_cache.adapters.onnx_embedder import OnnxEmbedder
from pointsman_semantic_cache.domain.embedding import Embedder, EmbedderUnavailable


class Embedders(MadeOnce[Embeddings, Embedder]):
    """Without one only the very same requests are answered again."""

    def __init__(self) -> None:
        without = "only the very same requests are answered again"
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
