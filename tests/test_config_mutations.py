"""Files with mistakes in them: each loads all the same, or is refused with the key at fault."""

import copy
from pathlib import Path
from random import Random
from typing import Final, cast

import pytest
import yaml

import pointsman_model_selector.configuration
import pointsman_preprocessor.configuration
import pointsman_profile_picker.configuration
import pointsman_scheduler.configuration
from pointsman_core.config import ConfigError
from pointsman_runtime.configuring.config_text import located, parse

ROOT: Final = Path(__file__).resolve().parent.parent
FILES: Final = ("pointsman.yaml", "examples/reference-profiles.yaml")
MUTATIONS: Final = 250
NUMBERS: Final[list[object]] = [None, True, -1, 0, 1.5, float("nan"), 10**30]
TEXTS: Final[list[object]] = ["", "x", "auto", "a b", "\0", "ü" * 300]
SHAPES: Final[list[object]] = [[], ["x"], [[]], {}, {"x": 1}]
JUNK: Final[list[object]] = [*NUMBERS, *TEXTS, *SHAPES]
CHECKS: Final = (
    pointsman_preprocessor.configuration.check,
    pointsman_profile_picker.configuration.check,
    pointsman_model_selector.configuration.check,
    pointsman_scheduler.configuration.check,
)

Node = dict[str, object] | list[object]


def nodes(node: object) -> list[Node]:
    """Every mapping and list of a document."""
    if isinstance(node, dict):
        mapping = cast("dict[str, object]", node)
        return [mapping, *(found for value in mapping.values() for found in nodes(value))]
    if isinstance(node, list):
        items = cast("list[object]", node)
        return [items, *(found for value in items for found in nodes(value))]
    return []


def mutate(document: object, random: Random) -> None:
    """Spoil one place: leave something out, put something else there, misspell a key, repeat an item."""
    node = random.choice([found for found in nodes(document) if found])
    if isinstance(node, list):
        position = random.randrange(len(node))
        match random.randrange(3):
            case 0:
                del node[position]
            case 1:
                node[position] = random.choice(JUNK)
            case _:
                node.append(copy.deepcopy(node[position]))
        return
    key = random.choice(list(node))
    match random.randrange(4):
        case 0:
            del node[key]
        case 1:
            node[key] = random.choice(JUNK)
        case 2:
            node[key[:-1] + "?"] = node.pop(key)
        case _:
            value = node[key]
            node[key] = f"{value}x" if isinstance(value, str) else [value]


def problems(text: str) -> list[tuple[str, str]]:
    """The errors of each service and command that reads the file."""
    try:
        config = parse(text)
    except ConfigError as error:
        return error.problems
    found: list[tuple[str, str]] = []
    for check in CHECKS:
        try:
            check(config)
        except ConfigError as error:
            found += located(text, error).problems
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_spoilt_file_loads_or_names_the_key_at_fault(name: str) -> None:
    original = cast("object", yaml.safe_load((ROOT / name).read_text(encoding="utf-8")))
    assert not problems(yaml.safe_dump(original, sort_keys=False))
    refused = 0
    for seed in range(MUTATIONS):
        document = copy.deepcopy(original)
        mutate(document, Random(seed))
        found = problems(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        refused += bool(found)
        for path, words in found:
            # A key of the file's top level has no path above it: the words quote it.
            assert words, f"mutation {seed}"
            assert path or "'" in words, f"mutation {seed}: {words}"
    assert refused > MUTATIONS // 3
