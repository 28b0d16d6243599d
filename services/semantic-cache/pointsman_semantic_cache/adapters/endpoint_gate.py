"""Compares questions by a service with `/rerank`, as text-embeddings-inference has it."""

import asyncio
from typing import Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from pointsman_embedding.model_service import ModelService, ServiceSilent
from pointsman_semantic_cache.domain.model_gate import GateUnavailable

_OK: Final = 200
_TOO_LONG: Final = 413


class _Rank(BaseModel):
    index: int
    score: float = Field(ge=0, le=1, allow_inf_nan=False)


_ANSWER: Final = TypeAdapter(list[_Rank])


class EndpointGate:
    """Implements `ModelGate`."""

    def __init__(self, url: str, credential: str | None, timeout_s: float, *, private: bool = False) -> None:
        """`private`: `url` may lead to a private address."""
        rerank = f"{url.rstrip('/')}/rerank"
        self._service: Final = ModelService("the gate's endpoint", rerank, credential, timeout_s, private=private)
        self.name: Final = f"endpoint:{url.rstrip('/')}"

    async def compare_texts(self, one: str, other: str) -> float | None:
        """Implements `ModelGate.compare_texts`."""
        forth, back = await asyncio.gather(self._likelihood(one, other), self._likelihood(other, one))
        return None if forth is None or back is None else min(forth, back)

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    async def _likelihood(self, query: str, text: str) -> float | None:
        asked = {"query": query, "texts": [text], "raw_scores": False, "truncate": False}
        try:
            status, body = await self._service.post_document(asked)
        except ServiceSilent as silent:
            raise GateUnavailable(silent.what, silent.detail) from silent
        if status == _TOO_LONG:
            return None
        if status != _OK:
            raise GateUnavailable(f"the gate's endpoint answers {status}")
        try:
            ranks = _ANSWER.validate_json(body)
        except ValidationError:
            # Its text quotes the answer, which may quote the question.
            raise GateUnavailable("the gate's endpoint must answer with scores from 0 to 1") from None
        if [rank.index for rank in ranks] != [0]:
            raise GateUnavailable("the gate's endpoint must answer with one score for each text")
        return ranks[0].score
