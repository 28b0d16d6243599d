"""An embedding model in a folder as Hugging Face lays it out: `model.onnx` (or `onnx/model.onnx`) and
`tokenizer.json`."""

# onnxruntime has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

LONGEST: Final = 256
"""Tokens that a model sees, where its folder doesn't say (`max_seq_length` in `sentence_bert_config.json`)."""
_FILES: Final = ("model.onnx", "onnx/model.onnx")
_INPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})

Vector = NDArray[np.float32]
"""Of length 1."""


class ModelUnusable(ValueError):
    """The folder isn't a model's. The text tells the operator what is wrong with it."""


class OnnxModel:
    """Mean of the last hidden state over the text's tokens, scaled to length 1 (Reimers and Gurevych, "Sentence-BERT",
    2019). One thread: the loop goes on meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Reads the model, which takes long. Raises ModelUnusable."""
        model = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if model is None:
            raise ModelUnusable(f"{folder} has neither {_FILES[0]} nor {_FILES[1]}")
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(model), sess_options=options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._longest = _longest(folder)
        except Exception as error:  # onnxruntime's and tokenizers' errors have no common class
            raise ModelUnusable(f"{folder} can't be loaded ({error})") from error
        self._inputs = [each.name for each in self._session.get_inputs()]
        unknown = sorted(set(self._inputs) - _INPUTS)
        if unknown:
            raise ModelUnusable(f"{folder} wants {', '.join(unknown)}; known inputs: {', '.join(sorted(_INPUTS))}")
        # Models ship with a fixed padding, which makes the shortest text cost the longest one's time.
        self._tokenizer.no_padding()
        self._file = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")

    @cached_property
    def name(self) -> str:
        """That of the weights: vectors of different names can't be compared. Reads the model."""
        with self._file.open("rb") as file:
            return f"onnx:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text; what of a text is longer than the model sees doesn't count."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rows, texts)

    async def embed_whole(self, text: str) -> Vector | None:
        """The text's vector; None for a text that is longer than the model sees, or says nothing to it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._whole, text)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _rows(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self._tokenizer.enable_truncation(self._longest)
        means = np.stack([self._mean(self._tokenizer.encode(text).ids) for text in texts])
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)

    def _whole(self, text: str) -> Vector | None:
        self._tokenizer.no_truncation()
        tokens = self._tokenizer.encode(text).ids
        if len(tokens) > self._longest:
            return None
        mean = self._mean(tokens)
        length = float(np.linalg.norm(mean))
        return mean / length if length else None

    def _mean(self, tokens: list[int]) -> NDArray[np.float32]:
        ids = np.array([tokens], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (hidden, *_) = self._session.run(None, {name: given[name] for name in self._inputs})
        first = np.asarray(hidden[0], np.float32)
        return first.mean(axis=0) if hidden.ndim == 3 else first


def _longest(folder: Path) -> int:
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return LONGEST
    told = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length")
    return told if isinstance(told, int) else LONGEST
