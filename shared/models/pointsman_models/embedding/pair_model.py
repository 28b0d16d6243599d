"""A model in a folder that compares two texts: a cross-encoder, or a classifier of natural language inference."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast

import numpy as np

from pointsman_models.embedding.model_folder import ModelFolder, ModelUnusable

LONGEST: Final = 256
"""The model's input limit in tokens of both texts, when its folder has none (`model_max_length` in
`tokenizer_config.json`)."""
ENTAILMENT: Final = "entailment"
"""The label that counts in a model with several, unless another one is named."""
_MOST: Final = 2**20
"""A `model_max_length` above this stands for none."""


class ModelFailed(Exception):
    """The model could not compare two texts. The message quotes neither."""


class PairModel:
    """The probability that two texts mean the same: the lower one of both orders, since entailment has a direction. It
    runs in one thread beside the event loop."""

    def __init__(self, folder: Path, label: str | None = None) -> None:
        """Reads the model, which takes long. `label`: the one for texts that mean the same, in a model with several.
        Raises ModelUnusable."""
        self._model = ModelFolder(folder)
        longest = self._model.read_document("tokenizer_config.json").get("model_max_length")
        self._longest = longest if isinstance(longest, int) and longest < _MOST else LONGEST
        self._model.tokenizer.no_truncation()
        labels = _labels(self._model.read_document("config.json"))
        self._place = None if len(labels) == 1 and label is None else _place(labels, label or ENTAILMENT, folder)
        self._count = len(labels)
        try:
            self._likelihood("one", "other")
        except ModelFailed as error:
            raise ModelUnusable(f"{folder} can't compare two texts ({error})") from error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pair-model")

    @property
    def name(self) -> str:
        """That of the weights. The first time it reads the model."""
        return self._model.name

    async def compare_texts(self, one: str, other: str) -> float | None:
        """The probability that both mean the same, in [0,1]; None for texts longer than the model's input. Raises
        ModelFailed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._same, one, other)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _same(self, one: str, other: str) -> float | None:
        forth = self._likelihood(one, other)
        return None if forth is None else min(forth, self._likelihood(other, one) or 0.0)

    def _likelihood(self, one: str, other: str) -> float | None:
        try:
            pair = self._model.tokenizer.encode(one, other)
            if len(pair.ids) > self._longest:
                return None
            logits = self._model.run(pair.ids, pair.type_ids).astype(np.float64)
        except Exception as error:  # onnxruntime's and tokenizers' errors have no common class
            raise ModelFailed(type(error).__name__) from error
        if logits.shape != (self._count,):
            raise ModelFailed(f"it gives numbers of shape {logits.shape}, not one for each of {self._count} labels")
        if self._place is None:
            return float(1 / (1 + np.exp(-np.clip(logits[0], -50, 50))))
        shares = np.exp(logits - logits.max())
        return float(shares[self._place] / shares.sum())


def _labels(config: Mapping[str, object]) -> list[str]:
    """The labels in the order of the model's numbers; one empty label when the folder has none."""
    told = config.get("id2label")
    if not isinstance(told, dict) or not told:
        return [""]
    by_place = cast("Mapping[str, object]", told)
    return [str(by_place.get(str(place), "")) for place in range(len(by_place))]


def _place(labels: list[str], label: str, folder: Path) -> int:
    for place, each in enumerate(labels):
        if each.lower() == label.lower():
            return place
    known = ", ".join(labels)
    raise ModelUnusable(f"{folder} has no label {label!r} for texts that mean the same; its labels: {known}")
