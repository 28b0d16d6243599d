"""The embedders of a configuration, each made once."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from pointsman_core.config import Cache, Embeddings
from pointsman_runtime.logs import Log
from pointsman_semantic_cache.adapters.endpoint_embedder import EndpointEmbedder
from pointsman_semantic_cache.adapters.lexical_embedder import LexicalEmbedder
from pointsman_semantic_cache.adapters.onnx_embedder import OnnxEmbedder
from pointsman_semantic_cache.domain.embedding import Embedder, EmbedderUnavailable

_log = Log("embeddings")


class Embedders:
    """Makes each once; one that can't be made is tried again with the next configuration."""

    def __init__(self) -> None:
        self._made: dict[Embeddings, asyncio.Task[Embedder | None]] = {}
        self._problems: dict[Embeddings, str] = {}

    def prepare(self, caches: Iterable[Cache]) -> None:
        """Begin to make what these caches need."""
        for settings in self._problems:
            self._made.pop(settings, None)
        self._problems.clear()
        for cache in caches:
            if cache.embeddings is not None:
                self._begin(cache.embeddings)

    async def get(self, settings: Embeddings) -> Embedder:
        """The embedder of these settings. Raises EmbedderUnavailable."""
        embedder = await asyncio.shield(self._begin(settings))
        if embedder is None:
            raise EmbedderUnavailable(self._problems.get(settings, "it is tried again"))
        return embedder

    async def close(self) -> None:
        """Close all of them."""
        for task in self._made.values():
            embedder = await task
            if embedder is not None:
                await embedder.close()

    def _begin(self, settings: Embeddings) -> "asyncio.Task[Embedder | None]":
        task = self._made.get(settings)
        if task is None:
            task = self._made[settings] = asyncio.get_running_loop().create_task(self._make(settings))
        return task

    async def _make(self, settings: Embeddings) -> Embedder | None:
        try:
            embedder = await _built(settings)
        except EmbedderUnavailable as problem:
            self._problems[settings] = str(problem)
            hint = "only the very same requests are answered again"
            _log.error("embedder_unavailable", reason=str(problem), hint=hint)
            return None
        hint = "it compares words, not meanings; configure `onnx` or `endpoint`" if settings.use == "lexical" else ""
        _log.info("embedder_ready", embedder=embedder.name, hint=hint)
        return embedder


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
