"""The figures that `scripts/structure.py` counts, on made-up files."""

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def structure() -> Any:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts/structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figures(structure: Any, **files: str) -> Any:
    return structure.measure([structure.Source(f"{name}.py", ast.parse(text)) for name, text in files.items()])


def record(name: str, *fields: str) -> str:
    return f"class {name}:\n" + "".join(f"    {field}: int\n" for field in fields)


@pytest.mark.parametrize(("other", "pairs"), [("abcd", 0), ("abcdx", 1), ("abcxy", 0), ("abcdefgh", 1)])
def test_records_that_share_three_quarters_of_five_fields_are_a_pair(structure: Any, other: str, pairs: int) -> None:
    assert len(figures(structure, one=record("One", *"abcde"), two=record("Two", *other)).pairs) == pairs


def test_a_call_with_six_positional_arguments_counts_unless_the_function_takes_any_number(structure: Any) -> None:
    calls = figures(
        structure,
        one="def many(*each: int): ...\nmany(1, 2, 3, 4, 5, 6)\n",
        two="six(1, 2, 3, 4, 5, 6)\nfive(1, 2, 3, 4, 5)\nnamed(1, 2, 3, 4, 5, f=6)\n",
    ).calls
    assert calls == ["two.py:1 six: 6"]


def test_a_method_of_one_word_counts_where_another_file_calls_it(structure: Any) -> None:
    methods = "class One:\n    def put(self): ...\n    def own(self): ...\n    def keep_body(self): ...\n"
    found = figures(structure, one=f"{methods}\nOne().own()\n", two="one.put()\none.keep_body()\n")
    assert (found.words, found.called) == (["one.py One.put"], 2)


def test_a_method_name_of_six_classes_counts(structure: Any) -> None:
    classes = "".join(f"class C{number}:\n    def tell(self): ...\n" for number in range(6))
    assert figures(structure, one=classes + "class D:\n    def other(self): ...\n").methods == ["tell: 6 classes"]


def test_an_interface_counts_once_however_many_classes_implement_it(structure: Any) -> None:
    text = "class Reader(Protocol):\n    def read(self): ...\n    def rest(self): ...\n"
    text += "class Base:\n    def tell(self): ...\n"
    text += "".join(f"class R{number}:\n    def read(self): ...\n    def rest(self): ...\n" for number in range(6))
    text += "".join(f"class T{number}(Base):\n    def tell(self): ...\n" for number in range(6))
    found = figures(structure, one=text, two="one.read()\none.rest()\none.tell()\n")
    assert (found.methods, found.called) == ([], 3)


def test_a_class_with_a_part_of_a_protocol_counts_by_itself(structure: Any) -> None:
    text = "class Reader(Protocol):\n    def read(self): ...\n    def rest(self): ...\n"
    text += "".join(f"class R{number}:\n    def read(self): ...\n" for number in range(5))
    assert figures(structure, one=text).methods == ["read: 6 classes"]


def test_a_reason_for_a_pair_that_is_no_longer_alike_is_named(structure: Any) -> None:
    pair = sorted(next(iter(structure.ALIKE)))
    two = {"one": record(pair[0], *"abcde"), "two": record(pair[1], *"abcde")}
    assert ", ".join(pair) in figures(structure, one=record(pair[0], *"abcde")).stale
    assert ", ".join(pair) not in figures(structure, **two).stale
    assert figures(structure, **two).pairs == []
