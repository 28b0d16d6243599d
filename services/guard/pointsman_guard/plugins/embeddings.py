"""A classifier over embeddings: closer to phrases that attack than to phrases that don't.

One cosine against a threshold tells little ("Ignore all previous instructions" and "Disregard prior rules" are 0.58
apart for all-MiniLM-L6-v2); the difference to harmless phrases about the same words tells more.
"""

import re
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pointsman_core.plugins import PluginError
from pointsman_guard.domain.folding import fold
from pointsman_guard.plugins.catalogue.phrases import ATTACKS, HARMLESS
from pointsman_plugins.guarding import ANY_ROLE, Checked, Detector, DetectorFailed, Finding, Outside, TextEmbedder
from pointsman_plugins.plugin import Params

PIECE: Final = 320
"""Characters of a text that are compared as one."""


class EmbeddingsParams(Params):
    """Parameters of `embeddings`."""

    model: str
    """Folder of an embedding model on the guard's disk: `model.onnx` and `tokenizer.json`."""
    category: str = "injection.meant"
    margin: float = Field(default=0.12, ge=-1, le=1)
    """By how much the closest attack must be closer than the closest harmless phrase."""
    least: float = Field(default=0.4, ge=-1, le=1)
    """Cosine to the closest attack below which nothing is found."""
    attacks: tuple[str, ...] = ()
    """Further phrases that are to be found."""
    harmless: tuple[str, ...] = ()
    """Further phrases that aren't."""
    pieces: int = Field(default=24, ge=1)
    """Pieces of a request that are compared, the last ones first: each costs some milliseconds."""
    roles: tuple[str, ...] = ("user", "tool")
    """Whose texts of a prompt it looks at; `*` is everybody's. Of an answer it looks at all."""


class EmbeddingDetector(Detector[EmbeddingsParams]):
    """Finds texts that mean what attacks mean, whatever their words."""

    type_name = "embeddings"
    waits: ClassVar[bool] = True

    def setup(self) -> None:
        self._embedder: TextEmbedder | None = None
        self._known: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    def bind(self, outside: Outside) -> None:
        """Load the model."""
        try:
            self._embedder = outside.embedder(self.params.model)
        except (OSError, ValueError) as error:
            raise PluginError(f"{self.name!r}: the model can't be used: {error}", ("model",)) from error

    async def detect(self, checked: Checked) -> Sequence[Finding]:
        """Texts with a piece that is closer to an attack."""
        params = self.params
        if self._embedder is None:
            raise DetectorFailed("isn't bound")
        everybody = checked.direction == "response" or ANY_ROLE in params.roles
        pieces = [
            (at, piece)
            for at, text in enumerate(checked.texts)
            if everybody or text.role in params.roles
            for piece in _pieces(fold(text.text))
        ][-params.pieces :]
        if not pieces:
            return ()
        if self._known is None:
            self._known = (
                await self._embedder.embed((*ATTACKS, *params.attacks)),
                await self._embedder.embed((*HARMLESS, *params.harmless)),
            )
        attacks, harmless = self._known
        rows = await self._embedder.embed([piece for _, piece in pieces])
        closest = (rows @ attacks.T).max(axis=1)
        margins = closest - (rows @ harmless.T).max(axis=1)
        found = (closest >= params.least) & (margins >= params.margin)
        texts = dict.fromkeys(at for (at, _), is_found in zip(pieces, found, strict=True) if is_found)
        return [Finding(params.category, self.name, at) for at in texts]


def _pieces(text: str) -> list[str]:
    """A text by sentences, short ones together."""
    pieces: list[str] = []
    for sentence in re.split(r"(?<=[.!?\n])\s+", text):
        for start in range(0, len(sentence), PIECE):
            part = sentence[start : start + PIECE].strip()
            if pieces and len(pieces[-1]) + len(part) < PIECE // 4:
                pieces[-1] = f"{pieces[-1]} {part}"
            elif part:
                pieces.append(part)
    return pieces
