"""Embeds texts by a model in a folder as Hugging Face lays it out: `model.onnx` (or `onnx/model.onnx`) and
`tokenizer.json`."""

# onnxruntime has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from pointsman_semantic_cache.domain.embedding import EmbedderUnavailable, Vector

LONGEST: Final = 256
"""Tokens of a text, where the model's folder doesn't say (`max_seq_length` in `sentence_bert_config.json`)."""
_FILES: Final = ("model.onnx", "onnx/model.onnx")


class OnnxEmbedder:
    """Mean of the last hidden state over the text's tokens, scaled to length 1 (Reimers and Gurevych, "Sentence-BERT",
    2019)."""

    threshold = 0.8

    def __init__(self, folder: Path) -> None:
        """Raises EmbedderUnavailable: the extra isn't installed, or the folder isn't a model's."""
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbedderUnavailable("install pointsman-semantic-cache[onnx]", str(error)) from error
        model = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if model is None:
            raise EmbedderUnavailable(f"{folder} has neither {_FILES[0]} nor {_FILES[1]}")
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(model), sess_options=options, providers=["CPUExecutionProvider"]
            )
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # onnxruntime's and tokenizers' errors have no common class
            raise EmbedderUnavailable(f"{folder} can't be loaded", str(error)) from error
        # Models ship with a fixed padding, which makes the shortest text cost the longest one's time.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._longest = _longest(folder)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedder")
        with model.open("rb") as file:
            self.name = f"onnx:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    async def embed(self, text: str) -> Vector | None:
        """The text's vector; None for a text that is longer than the model sees."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, text)

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _embed(self, text: str) -> Vector | None:
        tokens = self._tokenizer.encode(text).ids
        if len(tokens) > self._longest:
            return None
        ids = np.array([tokens], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (hidden, *_) = self._session.run(None, {name: given[name] for name in self._inputs})
        mean = np.asarray(hidden[0], np.float32).mean(axis=0) if hidden.ndim == 3 else np.asarray(hidden[0], np.float32)
        length = float(np.linalg.norm(mean))
        return mean / length if length else None


def _longest(folder: Path) -> int:
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return LONGEST
    told = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length")
    return told if isinstance(told, int) else LONGEST
