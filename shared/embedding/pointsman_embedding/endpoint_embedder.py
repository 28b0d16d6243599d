"""Embeds texts by a service with OpenAI's `/v1/embeddings`."""

import math
from typing import Final

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from pointsman_embedding.embedder import LONGEST, EmbedderUnavailable, Vector
from pointsman_embedding.model_service import ModelService, ServiceSilent

_OK: Final = 200


class _One(BaseModel):
    embedding: list[float] = Field(min_length=1)


class _Answer(BaseModel):
    data: list[_One] = Field(min_length=1)


class EndpointEmbedder:
    """One service. Texts are neither kept nor logged."""

    threshold = 0.8

    def __init__(
        self, url: str, model: str, credential: str | None, timeout_s: float, *, private: bool = False
    ) -> None:
        """`private`: `url` may lead to a private address."""
        embeddings = f"{url.rstrip('/')}/embeddings"
        self._service: Final = ModelService(
            "the embeddings endpoint", embeddings, credential, timeout_s, private=private
        )
        self._model: Final = model
        self.name: Final = f"endpoint:{url.rstrip('/')}:{model}"

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for one that is longer than `LONGEST`."""
        if len(text) > LONGEST:
            return None
        try:
            status, body = await self._service.post_document(
                {"model": self._model, "input": text, "encoding_format": "float"}
            )
        except ServiceSilent as silent:
            raise EmbedderUnavailable(silent.what, silent.detail) from silent
        if status != _OK:
            raise EmbedderUnavailable(f"the embeddings endpoint answers {status}")
        try:
            answer = _Answer.model_validate_json(body)
        except ValidationError as error:
            raise EmbedderUnavailable("the embeddings endpoint's answer has no embedding") from error
        with np.errstate(over="ignore"):
            vector = np.asarray(answer.data[0].embedding, np.float64)
            length = float(np.linalg.norm(vector))
        if not math.isfinite(length):
            raise EmbedderUnavailable("the embeddings endpoint's embedding isn't finite")
        return (vector / length).astype(np.float32) if length else None

    async def embed_start(self, text: str) -> Vector | None:
        """The vector of the first `LONGEST` characters."""
        return await self.embed(text[:LONGEST])

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()
