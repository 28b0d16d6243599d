"""A real model, and folders that are none."""

# onnx says of few of its functions what they take.
# pyright: reportUnknownMemberType=false

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pointsman_models.embedding.model_folder import ModelUnusable
from pointsman_models.embedding.onnx_model import OnnxModel
from pointsman_testing.minilm import minilm

LONG = "word " * 300


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minilm(tmp_path_factory.getbasetemp().parent)


async def test_a_model_sees_so_many_tokens_and_is_known_by_its_weights(model_folder: Path) -> None:
    model = OnnxModel(model_folder)
    asked = "How do I enable 2FA?"
    one, other = await model.embed_whole(asked), await model.embed_whole("How do I turn on 2FA?")
    assert one is not None
    assert other is not None
    assert (len(one), float(one @ one)) == (384, pytest.approx(1.0, abs=1e-5))
    assert float(one @ other) == pytest.approx(0.887, abs=0.01)
    assert await model.embed_whole(LONG) is None
    rows = await model.embed([asked, LONG, LONG + "and more"])
    assert np.allclose(rows[0], one, atol=1e-6)
    assert np.array_equal(rows[1], rows[2])
    assert await model.embed_whole(LONG) is None
    assert model.name.startswith("onnx:")
    model.close()


def test_a_folder_without_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"neither model\.onnx nor onnx/model\.onnx"):
        OnnxModel(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelUnusable, match="can't be loaded"):
        OnnxModel(tmp_path)


def test_a_model_with_an_unknown_input_is_refused_before_a_text_comes(model_folder: Path, tmp_path: Path) -> None:
    wants = helper.make_tensor_value_info("position_ids", TensorProto.INT64, [1, "tokens"])
    gives = helper.make_tensor_value_info("hidden", TensorProto.INT64, [1, "tokens"])
    graph = helper.make_graph([helper.make_node("Identity", ["position_ids"], ["hidden"])], "g", [wants], [gives])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "model.onnx"))
    shutil.copy(model_folder / "tokenizer.json", tmp_path)
    with pytest.raises(
        ModelUnusable,
        match="needs the unknown inputs position_ids; known inputs: attention_mask, input_ids, token_type",
    ):
        OnnxModel(tmp_path)
    (tmp_path / "model.onnx").unlink()
    (tmp_path / "model.onnx").symlink_to(model_folder / "model.onnx")
    (tmp_path / "sentence_bert_config.json").write_text("{cut off")
    with pytest.raises(ModelUnusable, match="can't be loaded"):
        OnnxModel(tmp_path)
