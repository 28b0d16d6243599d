"""How often `semantic-match` finds the class of a prompt, and how much CPU time an embedding takes.

`python -m benchmarks.semantic_match [--quick]`: sends the labelled prompts of `pointsman_testing` to a selector with
the classes `code`, `math`, `chat` and `translation`, whose own examples are of other topics, and counts how often the
model of the right class is chosen: by words, by all-MiniLM-L6-v2, by its weights in 8 bits, by its first layers alone,
and by a static model (one vector for each token). Then it measures the CPU time of an embedding of 256 tokens on one
core. `--quick`: words and all-MiniLM-L6-v2 alone, and no times.
"""

# onnxruntime has no type information.
# pyright: reportUnknownVariableType=false

import argparse
import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.machine import describe
from benchmarks.semantic_match.shortening import shorten
from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_core.config import load
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.domain.selector import CompiledSelector
from pointsman_models.embedding.onnx_model import OnnxModel
from pointsman_plugins.selecting import ModelQuestion, ModelStates, PromptEmbedding
from pointsman_testing import builders
from pointsman_testing.labelled_prompts import CLASSES, Labelled, accuracy, held_out
from pointsman_testing.minilm import minilm
from pointsman_testing.static_model import static_model

ACCURACY_BAR: Final = 0.85
CPU_BAR_MS: Final = 12.0
TOKENS: Final = 256


def selector(folder: str | None) -> CompiledSelector:
    """One model for each class, which has the class's name."""
    use: dict[str, object] = {"use": "semantic-match", "classes": {name: {"models": [name]} for name in CLASSES}}
    if folder is not None:
        use["embeddings"] = {"use": "onnx", "directory": folder}
    document = {"pools": {"p": {"models": list(CLASSES)}}, "selectors": {"s": {"scorers": [use]}}}
    return compile_all(load(document))["s"]


def question(text: str, embedding: PromptEmbedding | None) -> ModelQuestion:
    """A request for a model."""
    attributes = {PROMPT_VECTOR.name: {"kind": LEXICAL, "values": encode(vector(text))}}
    facts = read_fields(RequestFacts, {"api": "chat.completions", "attributes": attributes})
    journey = builders.journey("model-selector", model="auto", request=facts)
    return ModelQuestion(journey, ModelStates(), 0.0, 0, embedding)


async def chosen(prompts: list[Labelled], folder: Path | None) -> list[str]:
    """The model that is chosen for each prompt."""
    one = selector(None if folder is None else str(folder))
    if folder is None:
        return [one.select_model(question(each.text, None)).model.name for each in prompts]
    model = OnnxModel(folder)
    for scorer in one.comparing:
        scorer.take_vectors(model.name, await model.embed(scorer.texts_to_embed()))
    rows = await model.embed([each.text for each in prompts])
    names = [
        one.select_model(question(each.text, PromptEmbedding(model.name, row))).model.name
        for each, row in zip(prompts, rows, strict=True)
    ]
    model.close()
    return names


def cpu_ms(folder: Path) -> float:
    """The shortest CPU time of an embedding of `TOKENS` tokens, tokens included, in milliseconds."""
    model = OnnxModel(folder)
    # Two tokens are around the text.
    text = "word " * (TOKENS - 2)

    async def one() -> float:
        before = time.process_time()
        await model.embed((text,))
        return time.process_time() - before

    async def several() -> float:
        return min([await one() for _ in range(20)])

    shortest = asyncio.run(several())
    model.close()
    return shortest * 1000


def quantized(folder: Path, parent: Path) -> Path:
    """The model with weights in 8 bits."""
    small = parent / "int8"
    small.mkdir()
    quantize_dynamic(str(folder / "model.onnx"), str(small / "model.onnx"), weight_type=QuantType.QInt8)
    for name in ("tokenizer.json", "sentence_bert_config.json"):
        shutil.copy(folder / name, small / name)
    return small


def models(parent: Path, *, quick: bool) -> Iterator[tuple[str, Path | None]]:
    """Name and folder of each model."""
    yield "words (lexical)", None
    large = minilm(parent)
    yield "all-MiniLM-L6-v2", large
    if not quick:
        yield "all-MiniLM-L6-v2 in 8 bits", quantized(large, parent)
        for layers in (1, 2):
            shorten(large, parent / f"first-{layers}", layers)
            yield f"its first {layers} of 6 layers in 8 bits", parent / f"first-{layers}"
        yield "static, of all-MiniLM-L6-v2", static_model(large, parent)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    prompts = held_out()
    counts = {name: sum(each.label == name for each in prompts) for name in CLASSES}
    print(describe())
    print(f"{len(prompts)} prompts, held out by topic: {counts}; bars: {ACCURACY_BAR}, {CPU_BAR_MS} ms")
    with TemporaryDirectory() as folder:
        for title, model in models(Path(folder), quick=quick):
            found = asyncio.run(chosen(prompts, model))
            each: list[str] = []
            for label in CLASSES:
                ours = [(one, name) for one, name in zip(prompts, found, strict=True) if one.label == label]
                each.append(f"{label} {accuracy(*zip(*ours, strict=True)):.2f}")
            took = "" if model is None or quick else f", {cpu_ms(model):.1f} ms CPU for {TOKENS} tokens"
            print(f"{title}: accuracy {accuracy(prompts, found):.3f} ({', '.join(each)}){took}", flush=True)


if __name__ == "__main__":
    main()
