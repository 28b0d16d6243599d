"""Models that compare two texts, and folders that are none."""

from pathlib import Path

import pytest

from pointsman_models.embedding.model_folder import ModelUnusable
from pointsman_models.embedding.pair_model import PairModel
from pointsman_testing.pair_models import LONGEST, cross_encoder, nli_model


async def _same(model: PairModel, one: str, other: str) -> float:
    likely = await model.compare_texts(one, other)
    assert likely is not None
    return likely


async def test_a_cross_encoder_tells_paraphrases_from_other_questions(tmp_path: Path) -> None:
    model = PairModel(cross_encoder(tmp_path))
    assert await _same(model, "Is aspirin safe for dogs?", "For dogs, is aspirin harmless?") > 0.9
    assert await _same(model, "Is aspirin safe for dogs?", "Is aspirin not safe for dogs?") < 0.1
    assert model.name.startswith("onnx:")
    model.close()


async def test_a_text_that_only_entails_the_other_does_not_mean_the_same(tmp_path: Path) -> None:
    model = PairModel(nli_model(tmp_path))
    general, special = "aspirin safe dogs", "aspirin safe old dogs"
    assert await _same(model, special, general) < 0.1
    assert await _same(model, general, special) < 0.1
    assert await _same(model, general, "dogs aspirin harmless") > 0.9
    model.close()


async def test_texts_that_the_model_does_not_see_whole_are_not_compared(tmp_path: Path) -> None:
    model = PairModel(cross_encoder(tmp_path))
    half = "dogs " * (LONGEST // 2)
    assert await model.compare_texts(half, half) is not None
    assert await model.compare_texts(half, half + "dogs") is None
    model.close()


async def test_the_label_for_texts_that_mean_the_same_has_to_be_known(tmp_path: Path) -> None:
    folder = nli_model(tmp_path, ("other", "duplicate", "unclear"))
    with pytest.raises(ModelUnusable, match=r"no label 'entailment' .* its labels: other, duplicate, unclear"):
        PairModel(folder)
    model = PairModel(folder, "Duplicate")
    assert await _same(model, "dogs", "dogs") > 0.9
    model.close()


def test_a_model_whose_numbers_are_not_its_labels_is_refused_before_a_text_comes(tmp_path: Path) -> None:
    folder = nli_model(tmp_path)
    (folder / "config.json").unlink()
    with pytest.raises(ModelUnusable, match=r"shape \(3,\), not one for each of 1 labels"):
        PairModel(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelUnusable, match="is no object"):
        PairModel(folder)
