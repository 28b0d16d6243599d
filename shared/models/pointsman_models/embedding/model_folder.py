"""A model's folder as Hugging Face lays it out: `model.onnx` (or `onnx/model.onnx`) and `tokenizer.json`."""

# onnxruntime has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

_FILES: Final = ("model.onnx", "onnx/model.onnx")
_INPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})


class ModelUnusable(ValueError):
    """The folder has no usable model. The text tells the operator the reason."""


class ModelFolder:
    """A loaded model and its tokenizer. Runs on one core, in the thread that calls it."""

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
            self.tokenizer: Final = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # onnxruntime's and tokenizers' errors have no common class
            raise ModelUnusable(f"{folder} can't be loaded ({error})") from error
        self._inputs = [each.name for each in self._session.get_inputs()]
        unknown = sorted(set(self._inputs) - _INPUTS)
        if unknown:
            raise ModelUnusable(
                f"{folder} needs the unknown inputs {', '.join(unknown)}; known inputs: {', '.join(sorted(_INPUTS))}"
            )
        # Models ship with a fixed padding, which makes the shortest text cost the longest one's time.
        self.tokenizer.no_padding()
        self._folder: Final = folder
        self._file: Final = model

    @cached_property
    def name(self) -> str:
        """That of the weights. Reads the model."""
        with self._file.open("rb") as file:
            return f"onnx:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    def read_document(self, file: str) -> Mapping[str, object]:
        """A JSON object beside the model; empty when the file is missing. Raises ModelUnusable."""
        path = self._folder / file
        if not path.is_file():
            return {}
        try:
            told = cast("object", json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ModelUnusable(f"{self._folder} can't be loaded ({file}: {error})") from error
        if not isinstance(told, dict):
            raise ModelUnusable(f"{self._folder} can't be loaded ({file} is no object)")
        return cast("Mapping[str, object]", told)

    def run(self, tokens: list[int], kinds: list[int] | None = None) -> NDArray[np.float32]:
        """The model's first output for one text. `kinds`: of each token, which text of a pair it is of (0 or 1)."""
        ids = np.array([tokens], np.int64)
        types = np.zeros_like(ids) if kinds is None else np.array([kinds], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        (first, *_) = self._session.run(None, {name: given[name] for name in self._inputs})
        return np.asarray(first[0], np.float32)
