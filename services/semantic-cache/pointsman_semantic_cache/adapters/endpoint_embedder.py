"""Embeds texts by a service with OpenAI's `/v1/embeddings`."""

from typing import Final

import aiohttp
import numpy as np
import orjson
from pydantic import BaseModel, Field, ValidationError

from pointsman_runtime import outbound
from pointsman_semantic_cache.adapters.references import ReferenceMissing, secret
from pointsman_semantic_cache.domain.embedding import LONGEST, EmbedderUnavailable, Vector

_OK: Final = 200


class _One(BaseModel):
    embedding: list[float] = Field(min_length=1)


class _Answer(BaseModel):
    data: list[_One] = Field(min_length=1)


class EndpointEmbedder:
    """One service. Nothing of a text is kept or logged."""

    threshold = 0.8

    def __init__(
        self, url: str, model: str, credential: str | None, timeout_s: float, *, private: bool = False
    ) -> None:
        """`private`: `url` may lead to a private address."""
        self._url: Final = f"{url.rstrip('/')}/embeddings"
        self._model: Final = model
        self._credential: Final = credential
        self._timeout: Final = aiohttp.ClientTimeout(total=timeout_s)
        self._private: Final = private
        self._session: aiohttp.ClientSession | None = None
        self.name: Final = f"endpoint:{url.rstrip('/')}:{model}"

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for one that is longer than `LONGEST`."""
        if len(text) > LONGEST:
            return None
        headers = {"content-type": "application/json"}
        if self._credential is not None:
            try:
                headers["authorization"] = f"Bearer {secret(self._credential)}"
            except ReferenceMissing as missing:
                raise EmbedderUnavailable(str(missing)) from missing
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=outbound.connector(private=self._private), timeout=self._timeout
            )
        body = orjson.dumps({"model": self._model, "input": text, "encoding_format": "float"})
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status != _OK:
                    raise EmbedderUnavailable(f"the embeddings endpoint answers {response.status}")
                answer = _Answer.model_validate_json(await response.read())
        except (TimeoutError, aiohttp.ClientError) as error:
            raise EmbedderUnavailable("the embeddings endpoint doesn't answer", outbound.reason_of(error)) from error
        except ValidationError as error:
            raise EmbedderUnavailable("the embeddings endpoint's answer has no embedding") from error
        vector = np.asarray(answer.data[0].embedding, np.float32)
        length = float(np.linalg.norm(vector))
        return vector / np.float32(length) if length else None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
