"""The classes of prompts that have examples of their own."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def known_classes() -> Mapping[str, tuple[str, ...]]:
    """Class → its examples: `code`, `math`, `chat`, `translation`."""
    text = files("pointsman_model_selector.domain").joinpath("classes.toml").read_text(encoding="utf-8")
    topics: Mapping[str, Mapping[str, list[str]]] = tomllib.loads(text)
    return {name: tuple([each for topic in of.values() for each in topic]) for name, of in topics.items()}
