"""An embedding model in a folder as Hugging Face lays it out: `model.onnx` (or `onnx/model.onnx`) and
`tokenizer.json`."""

# onnxruntime has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LONGEST: Final = 256
"""Tokens of a text that count."""
_FILES: Final = ("model.onnx", "onnx/model.onnx")


class OnnxEmbedder:
    """Mean of the last hidden state over the text's tokens, scaled to length 1 (Reimers and Gurevych, "Sentence-BERT",
    2019). One thread: the loop goes on meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError: the extra isn't installed, or the folder isn't a model's."""
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(f"install pointsman-guard[onnx]: {error}") from error
        model = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if model is None:
            raise FileNotFoundError(f"{folder} has neither {_FILES[0]} nor {_FILES[1]}")
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(model), sess_options=options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # onnxruntime's and tokenizers' errors have no common class
            raise ValueError(f"{folder} can't be loaded: {type(error).__name__}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LONGEST)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As `Embedder.embed`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rows, texts)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _rows(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self._row(text) for text in texts])

    def _row(self, text: str) -> NDArray[np.float32]:
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (hidden, *_) = self._session.run(None, {name: given[name] for name in self._inputs})
        mean = np.asarray(hidden[0], np.float32).mean(axis=0) if hidden.ndim == 3 else np.asarray(hidden[0], np.float32)
        return mean / max(float(np.linalg.norm(mean)), 1e-12)
