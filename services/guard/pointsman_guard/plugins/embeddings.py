"""A classifier over embeddings: closer to phrases that attack than to phrases that don't.

One cosine against a threshold shows little ("Ignore all previous instructions" and "Disregard prior rules" are 0.58
apart for all-MiniLM-L6-v2); the difference to harmless phrases about the same words shows more.
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
"""Characters of a text that are compared together."""


class EmbeddingsParams(Params):
    """Parameters of `embeddings`."""

    model: str
    """Folder of an embedding model on the guard's disk: `model.onnx` and `tokenizer.json`."""
    category: str = "injection.meant"
    margin: float = Field(default=0.12, ge=-1, le=1)
    """Minimum margin by which the closest attack must be closer than the closest harmless phrase."""
    least: float = Field(default=0.4, ge=-1, le=1)
    """Minimum cosine to the closest attack for a finding."""
    attacks: tuple[str, ...] = ()
    """Further phrases of attacks."""
    harmless: tuple[str, ...] = ()
    """Further harmless phrases."""
    pieces: int = Field(default=24, ge=1)
    """Most pieces of a request that are compared, the last ones first: each costs some milliseconds."""
    roles: tuple[str, ...] = ("user", "tool")
    """Roles whose prompt texts are checked; `*` is every role. All texts of an answer are checked."""


class EmbeddingDetector(Detector[EmbeddingsParams]):
    """Finds texts with the meaning of attacks, in any words."""

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
        any_role = checked.direction == "response" or ANY_ROLE in params.roles
        pieces = [
            (at, piece)
            for at, text in enumerate(checked.texts)
            if any_role or text.role in params.roles
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
    """A text by sentences, with short ones joined."""
    pieces: list[str] = []
    for sentence in re.split(r"(?<=[.!?\n])\s+", text):
        for start in range(0, len(sentence), PIECE):
            part = sentence[start : start + PIECE].strip()
            if pieces and len(pieces[-1]) + len(part) < PIECE // 4:
                pieces[-1] = f"{pieces[-1]} {part}"
            elif part:
                pieces.append(part)
    return pieces
