"""The first layers of an embedding model, as `python -m benchmarks.semantic_match.shortening` writes them."""

# onnx and onnxruntime have types for few of their functions.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

SHORTENING: Final = Path(__file__).resolve().parent.parent / "benchmarks/semantic_match/shortening.py"
shorten: Final = cast("Callable[[Path, Path, int], None]", runpy.run_path(str(SHORTENING))["shorten"])
WIDTH, LAYERS = 16, 2


def write_model(folder: Path) -> None:
    """A model of two layers as a BERT has them: each ends in two normalizations, and the embeddings in one."""
    dice = np.random.default_rng(1)
    ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    parts = {"words": dice.normal(size=(32, WIDTH)).astype(np.float32), "ones": ones, "zeros": zeros}
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["embedded"]),
        helper.make_node("LayerNormalization", ["embedded", "ones", "zeros"], ["normal_0"]),
    ]
    for place in range(1, 2 * LAYERS + 1):
        parts[f"weight_{place}"] = dice.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [f"normal_{place - 1}", f"weight_{place}"], [f"turned_{place}"]),
            helper.make_node("LayerNormalization", [f"turned_{place}", "ones", "zeros"], [f"normal_{place}"]),
        ]
    shape = ["batch", "sequence", WIDTH]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info(f"normal_{2 * LAYERS}", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in parts.items()],
    )
    folder.mkdir()
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(folder / "model.onnx"))
    (folder / "tokenizer.json").write_text("{}")


def embed(folder: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    (vectors,) = session.run(None, {"input_ids": np.arange(8, dtype=np.int64)[None]})
    return np.asarray(vectors)


def test_a_shortened_model_computes_the_first_layers_of_the_whole_one(tmp_path: Path) -> None:
    write_model(tmp_path / "whole")
    vectors: list[np.ndarray] = []
    for layers in (1, LAYERS):
        shorten(tmp_path / "whole", tmp_path / f"first-{layers}", layers)
        assert sorted(each.name for each in (tmp_path / f"first-{layers}").iterdir()) == [
            "model.onnx", "tokenizer.json",
        ]  # fmt: skip
        vectors.append(embed(tmp_path / f"first-{layers}"))
    whole = embed(tmp_path / "whole")
    # In 8 bits: almost the same.
    assert np.abs(vectors[1] - whole).max() < 0.2
    assert np.abs(vectors[0] - whole).max() > 1.0
    with pytest.raises(ValueError, match="5 norms are too few for 3 layers"):
        shorten(tmp_path / "whole", tmp_path / "none", LAYERS + 1)
