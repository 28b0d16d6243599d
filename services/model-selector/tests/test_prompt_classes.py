"""Classes of prompts by a real embedding model and by words, on prompts whose topics the examples don't have."""

from pathlib import Path

import pytest

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_core.config import load
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.domain.classes import known_classes
from pointsman_models.embedding.onnx_model import OnnxModel
from pointsman_plugins.selecting import ModelQuestion, ModelStates, PromptEmbedding
from pointsman_testing import builders
from pointsman_testing.labelled_prompts import CLASSES, Labelled, accuracy, held_out
from pointsman_testing.minilm import minilm

BAR = 0.85
EVERY = 4
"""`python -m benchmarks.semantic_match` takes all prompts; this takes one of four."""


async def chosen(prompts: list[Labelled], folder: Path | None) -> list[str]:
    """The model that a selector with one model for each class chooses for each prompt."""
    use: dict[str, object] = {"use": "semantic-match", "classes": {name: {"models": [name]} for name in CLASSES}}
    if folder is not None:
        use["embeddings"] = {"use": "onnx", "directory": str(folder)}
    document = {"pools": {"p": {"models": list(CLASSES)}}, "selectors": {"s": {"scorers": [use]}}}
    selector = compile_all(load(document))["s"]
    embeddings: list[PromptEmbedding | None] = [None] * len(prompts)
    if folder is not None:
        model = OnnxModel(folder)
        for scorer in selector.comparing:
            scorer.take_vectors(model.name, await model.embed(scorer.texts_to_embed()))
        embeddings = [PromptEmbedding(model.name, row) for row in await model.embed([each.text for each in prompts])]
        model.close()
    names: list[str] = []
    for each, embedding in zip(prompts, embeddings, strict=True):
        attributes = {PROMPT_VECTOR.name: {"kind": LEXICAL, "values": encode(vector(each.text))}}
        facts = read_fields(RequestFacts, {"api": "chat.completions", "attributes": attributes})
        journey = builders.journey("model-selector", model="auto", request=facts)
        names.append(selector.select_model(ModelQuestion(journey, ModelStates(), 0.0, 0, embedding)).model.name)
    return names


@pytest.mark.requirement("S3-26")
@pytest.mark.timeout(600)  # 600 embeddings on one core, which others may use as well
async def test_meanings_find_the_class_of_a_prompt_where_words_do_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    prompts = held_out()[::EVERY]
    by_meaning = accuracy(prompts, await chosen(prompts, minilm(tmp_path_factory.getbasetemp().parent)))
    by_words = accuracy(prompts, await chosen(prompts, None))
    assert by_meaning >= BAR
    assert by_words < by_meaning - 0.1


def test_the_held_out_prompts_are_balanced_and_none_is_an_example() -> None:
    prompts = held_out()
    assert {name: sum(each.label == name for each in prompts) for name in CLASSES} == dict.fromkeys(CLASSES, 80)
    examples = {text.casefold() for texts in known_classes().values() for text in texts}
    assert {len(texts) for texts in known_classes().values()} == {130}
    assert not examples & {each.text.casefold() for each in prompts}
