"""An embedding model in a folder."""

# tokenizers has types for few of its functions.
# pyright: reportUnknownMemberType=false

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pointsman_models.embedding.model_folder import ModelFolder

LONGEST: Final = 256
"""The model's input limit in tokens, when its folder has none (`max_seq_length` in `sentence_bert_config.json`)."""

Vector = NDArray[np.float32]
"""A vector of length 1."""


class OnnxModel:
    """Mean of the last hidden state over the text's tokens, scaled to length 1 (Reimers and Gurevych, "Sentence-BERT",
    2019). It runs in one thread beside the event loop."""

    def __init__(self, folder: Path) -> None:
        """Reads the model, which takes long. Raises ModelUnusable."""
        self._model = ModelFolder(folder)
        longest = self._model.read_document("sentence_bert_config.json").get("max_seq_length")
        self._longest = longest if isinstance(longest, int) else LONGEST
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")

    @property
    def name(self) -> str:
        """That of the weights: vectors of different names can't be compared. The first time it reads the model."""
        return self._model.name

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text; what of a text is longer than the model sees doesn't count."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rows, texts)

    async def embed_whole(self, text: str) -> Vector | None:
        """The text's vector; None for a text that is longer than the model's input, or has no known token."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._whole, text)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _rows(self, texts: Sequence[str]) -> NDArray[np.float32]:
        tokenizer = self._model.tokenizer
        tokenizer.enable_truncation(self._longest)
        means = np.stack([self._mean(tokenizer.encode(text).ids) for text in texts])
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)

    def _whole(self, text: str) -> Vector | None:
        tokenizer = self._model.tokenizer
        tokenizer.no_truncation()
        tokens = tokenizer.encode(text).ids
        if len(tokens) > self._longest:
            return None
        mean = self._mean(tokens)
        length = float(np.linalg.norm(mean))
        return mean / length if length else None

    def _mean(self, tokens: list[int]) -> NDArray[np.float32]:
        hidden = self._model.run(tokens)
        return hidden.mean(axis=0) if hidden.ndim == 2 else hidden
