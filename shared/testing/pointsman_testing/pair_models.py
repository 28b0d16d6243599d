"""Tiny models that compare two texts, in folders like those of real ones. They know a few words and compare the sums of
the words' weights. Tests that use them must have the packages that this module needs."""

# onnx has types for few of its functions.
# pyright: reportUnknownMemberType=false

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

WEIGHTS: Final = {"aspirin": 1.0, "safe": 2.0, "harmless": 2.0, "dogs": 4.0, "old": 8.0, "not": 16.0}
"""Words that mean the same weigh the same; every other word weighs nothing."""
NLI: Final = ("contradiction", "entailment", "neutral")
LONGEST: Final = 32


def cross_encoder(folder: Path) -> Path:
    """One number: high where both texts weigh the same."""
    return _written(folder, ("LABEL_0",), slopes=[-10.0], biases=[5.0], apart=True)


def nli_model(folder: Path, labels: Sequence[str] = NLI) -> Path:
    """Three numbers, the second one high where the first text weighs at least as much as the second one: who says more
    entails who says less."""
    return _written(folder, labels, slopes=[0.0, 10.0, 0.0], biases=[0.0, 5.0, 0.0], apart=False)


def _written(
    folder: Path, labels: Sequence[str], *, slopes: Sequence[float], biases: Sequence[float], apart: bool
) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir(parents=True, exist_ok=True)
    constants = {
        "weights": np.array([0.0, *WEIGHTS.values()], np.float32),
        "one": np.array(1.0, np.float32),
        "two": np.array(2.0, np.float32),
        "axis": np.array([1], np.int64),
        "slopes": np.array([slopes], np.float32),
        "biases": np.array(biases, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
        helper.make_node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["second", "two"], ["twice"]),
        helper.make_node("Sub", ["one", "twice"], ["sign"]),
        helper.make_node("Mul", ["each", "sign"], ["signed"]),
        helper.make_node("ReduceSum", ["signed", "axis"], ["more"], keepdims=1),
        helper.make_node("Abs" if apart else "Identity", ["more"], ["difference"]),
        helper.make_node("MatMul", ["difference", "slopes"], ["sloped"]),
        helper.make_node("Add", ["sloped", "biases"], ["logits"]),
    ]
    shape = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("input_ids", "token_type_ids")]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(slopes)])
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "pair", inputs, [output], held)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(folder / "model.onnx"))
    vocabulary = {word: place for place, word in enumerate(["[UNK]", *WEIGHTS])}
    tokenizer: dict[str, object] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None,
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    described = {str(place): label for place, label in enumerate(labels)}
    documents: dict[str, dict[str, object]] = {
        "tokenizer.json": tokenizer,
        "config.json": {"id2label": described},
        "tokenizer_config.json": {"model_max_length": LONGEST},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return folder
