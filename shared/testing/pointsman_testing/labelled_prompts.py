"""Prompts with the class that they belong to, of topics that the model-selector's own examples don't have."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

CLASSES: Final = ("code", "math", "chat", "translation")


class Labelled(NamedTuple):
    """A prompt and its class."""

    text: str
    label: str


def held_out() -> list[Labelled]:
    """The prompts, 80 of each class."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    classes: Mapping[str, Mapping[str, list[str]]] = tomllib.loads(text)
    return [Labelled(text, name) for name, topics in classes.items() for texts in topics.values() for text in texts]


def accuracy(prompts: Sequence[Labelled], found: Sequence[str]) -> float:
    """The share of prompts whose class was found."""
    return sum(each.label == name for each, name in zip(prompts, found, strict=True)) / len(prompts)
