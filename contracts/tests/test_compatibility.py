"""A released message only gains optional fields."""

import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import pytest

from pointsman_contracts import __main__, compatibility, export
from pointsman_contracts.json_schema import schema
from pointsman_contracts.message import Address, Message, Part

FOLDER = Path(__file__).resolve().parent.parent
B = TypeVar("B", bound=Part)
_NUMBERS = itertools.count(1)
"""Parts of one schema need names of their own."""


def _inner(**fields: tuple[object, ...]) -> type[Part]:
    return _part(f"Inner{next(_NUMBERS)}", fields or {"a": (int, 1)}, Part)


def _part(name: str, fields: Mapping[str, tuple[object, ...]], base: type[B]) -> type[B]:
    """A class with these fields: type, and default if it has one."""
    listed = cast("list[tuple[str, type]]", [(field, *about) for field, about in fields.items()])
    return cast("type[B]", msgspec.defstruct(name, listed, bases=(base,), kw_only=True, frozen=True))


class _Addressed(Message, frozen=True):
    address = Address("evt", "test", "old")


def _violations(**changes: tuple[object, ...] | None) -> list[str]:
    inner = _inner()
    fields: dict[str, tuple[object, ...] | None] = {
        "name": (str,),
        "count": (int | None, None),
        "inner": (inner,),
        "many": (tuple[inner, ...], ()),  # pyright: ignore[reportInvalidTypeForm]
    }
    old, new = (
        schema(_part("Old", {name: about for name, about in version.items() if about is not None}, _Addressed))
        for version in (fields, fields | changes)
    )
    return compatibility.violations(old, new)


def test_a_new_optional_field_is_allowed() -> None:
    assert _violations(added=(str | None, None), added_with_default=(int, 0)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": None}, "field 'name' was removed"),
        ({"added": (str,)}, "field 'added' became required"),
        ({"count": (int,)}, "field 'count' changed its type"),
        ({"name": (int,)}, "field 'name' changed its type"),
        ({"name": (str, "")}, "field 'name' became optional"),
        ({"inner": (_inner(a=(str, "1")),)}, "field 'inner.a' changed its type"),
        ({"inner": (_inner(b=(int, 1)),)}, "field 'inner.a' was removed"),
        ({"many": (tuple[str, ...], ())}, "field 'many[]' changed its type"),
        (
            {"many": (tuple[_inner(a=(int,)), ...], ())},
            "field 'many[].a' became required",
        ),
    ],
)
def test_a_change_that_breaks_old_readers_or_senders_is_refused(
    changes: dict[str, tuple[object, ...] | None], expected: str
) -> None:
    assert expected in _violations(**changes)


def test_todays_messages_can_replace_the_released_ones() -> None:
    assert compatibility.check(FOLDER) == []


def _compat(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["pointsman_contracts", "compat", "--folder", str(folder)])
    return __main__.main()


def test_the_check_says_what_it_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compat(FOLDER, monkeypatch) == 0
    count = len(list((FOLDER / "released").glob("*.json")))
    assert capsys.readouterr().out == f"{count} messages against {FOLDER / 'released'}: compatible\n"


@pytest.mark.parametrize("exists", [False, True], ids=["missing", "empty"])
def test_a_check_without_anything_to_compare_with_fails(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export.write(tmp_path)
    if exists:
        (tmp_path / "released").mkdir()
    assert _compat(tmp_path, monkeypatch) == 1
    assert "released: holds no schema to compare with" in capsys.readouterr().err


def test_a_message_that_is_not_released_yet_may_come_and_change(tmp_path: Path) -> None:
    export.write(tmp_path)
    assert compatibility.release(tmp_path) == []
    (tmp_path / "released/worker.load.v1.json").unlink()
    (tmp_path / "schemas/worker.load.v1.json").write_text("{}", encoding="utf-8")
    assert compatibility.check(tmp_path) == []


def test_a_released_message_cannot_vanish_and_a_bad_release_changes_nothing(tmp_path: Path) -> None:
    export.write(tmp_path)
    assert compatibility.release(tmp_path) == []
    frozen = tmp_path / "released/worker.load.v1.json"
    before = frozen.read_text(encoding="utf-8")
    schema = json.loads(before)
    del schema["properties"]["running"]
    (tmp_path / "schemas/worker.load.v1.json").write_text(json.dumps(schema), encoding="utf-8")
    (tmp_path / "schemas/pool.snapshot.v1.json").unlink()
    assert compatibility.release(tmp_path) == [
        "pool.snapshot.v1.json: the message was released and is gone",
        "worker.load.v1.json: field 'running' was removed",
    ]
    assert frozen.read_text(encoding="utf-8") == before
