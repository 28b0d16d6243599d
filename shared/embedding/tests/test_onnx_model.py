"""A real model, and folders that are none."""

from pathlib import Path

import numpy as np
import pytest

from pointsman_embedding.onnx_model import ModelUnusable, OnnxModel
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


def test_a_folder_that_is_no_models_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"neither model\.onnx nor onnx/model\.onnx"):
        OnnxModel(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelUnusable, match="can't be loaded"):
        OnnxModel(tmp_path)
