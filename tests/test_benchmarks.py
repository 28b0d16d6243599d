"""Benchmarks measure the gateway itself; times decide no test."""

import re
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Protocol, cast

import pytest

from pointsman_apis.requests import StructuredBody
from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_core.config import load
from pointsman_preprocessor.domain.pipeline import Pipeline, registry
from pointsman_preprocessor.plugins import BUILTIN

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = ROOT / "services/preprocessor/README.md"


class Preprocess(Protocol):
    """The measurements of `benchmarks/preprocess`."""

    BARS_US: Mapping[str, float]
    CHATS: tuple[tuple[int, int], ...]
    chat: Callable[[int, int], bytes]
    journey_of: Callable[[Pipeline, memoryview], Journey]
    parts: Callable[[Pipeline, memoryview], dict[str, Callable[[], object]]]


BENCHMARK: Final = cast(
    "Preprocess", SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks/preprocess/__main__.py")))
)


@pytest.mark.requirement("S4-13")
def test_long_conversations_are_measured_with_their_whole_prompt_and_the_figures_are_published() -> None:
    pipeline = Pipeline(load({}), registry(BUILTIN))
    published = re.findall(r"^\| (\d+) KB, (\d+) messages \|", README.read_text(), re.MULTILINE)
    assert [(str(size // 1000), str(messages)) for size, messages in BENCHMARK.CHATS] == published
    for size, messages in BENCHMARK.CHATS:
        facts = BENCHMARK.journey_of(pipeline, memoryview(BENCHMARK.chat(size, messages))).request
        assert size / 5 < facts.prompt_tokens < size / 3
        # One hash for each full block: work grows with the prompt, not faster.
        assert len(facts.blocks) // 8 == facts.prompt_tokens // 64 or facts.prompt_tokens % 64 == 0


@pytest.mark.requirement("S4-18")
def test_parsing_and_rendering_the_prompt_are_measured_apart() -> None:
    pipeline = Pipeline(load({}), registry(BUILTIN))
    measured = BENCHMARK.parts(pipeline, memoryview(BENCHMARK.chat(*BENCHMARK.CHATS[0])))
    assert isinstance(measured["parse"](), StructuredBody)
    facts = measured["facts"]()
    assert isinstance(facts, RequestFacts)
    assert facts.blocks
    assert {name.split()[0] for name in BENCHMARK.BARS_US} <= set(measured)
