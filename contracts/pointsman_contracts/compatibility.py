"""A released message only gains optional fields; anything else needs a new version on a new subject.

`released/` holds the schemas as they were released. A schema that exists there may not lose a field, gain a required
one, leave one to be required, or change a field's type: old senders and old readers stay on the bus during every
rolling upgrade.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pointsman_contracts.message import JsonValue

Schema = Mapping[str, JsonValue]

_ANNOTATIONS = frozenset({"title", "description", "default", "$id", "$schema", "examples"})


def violations(released: Schema, current: Schema) -> list[str]:
    """Why `current` can't replace `released`, one sentence each; empty when it can."""
    return _compare(old=released, new=current, old_root=released, new_root=current, path="", seen=frozenset())


def released(folder: Path) -> list[Path]:
    """The schemas in `folder/released`, by name; empty before the first release."""
    return sorted((folder / "released").glob("*.json"))


def check(folder: Path) -> list[str]:
    """Compare `folder/schemas` with `folder/released`: every violation, prefixed by the file's name.

    Nothing to compare with is a problem too: a check that sees no schema would pass whatever is changed.
    """
    if not released(folder):
        return [f"{folder / 'released'}: holds no schema to compare with; restore it, or release for the first time"]
    return _changes(folder)


def _changes(folder: Path) -> list[str]:
    problems: list[str] = []
    for path in released(folder):
        now = folder / "schemas" / path.name
        if not now.exists():
            problems.append(f"{path.name}: the message was released and is gone")
            continue
        problems += [f"{path.name}: {text}" for text in violations(_read(path), _read(now))]
    return problems


def release(folder: Path) -> list[str]:
    """Freeze the current schemas as released, for the first time or again.

    Returns the violations and changes nothing when there are any.
    """
    problems = _changes(folder)
    if not problems:
        (folder / "released").mkdir(exist_ok=True)
        for path in (folder / "schemas").glob("*.json"):
            (folder / "released" / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return problems


def _read(path: Path) -> Schema:
    return cast("Schema", json.loads(path.read_text(encoding="utf-8")))


def _compare(
    old: Schema, new: Schema, old_root: Schema, new_root: Schema, path: str, seen: frozenset[tuple[str, str]]
) -> list[str]:
    pair = (str(old.get("$ref", "")), str(new.get("$ref", "")))
    if all(pair):
        if pair in seen:
            return []
        seen |= {pair}
    old, new = _resolve(old, old_root), _resolve(new, new_root)
    old_fields, new_fields = _object(old.get("properties")), _object(new.get("properties"))
    where = f"field {path!r}" if path else "the message"
    if _signature(old, old_root) != _signature(new, new_root):
        return [f"{where} changed its type"]
    problems: list[str] = []
    for name, field in old_fields.items():
        inner = f"{path}.{name}".lstrip(".")
        if name not in new_fields:
            problems.append(f"field {inner!r} was removed")
        else:
            problems += _compare(
                old=_object(field),
                new=_object(new_fields[name]),
                old_root=old_root,
                new_root=new_root,
                path=inner,
                seen=seen,
            )
    before = set(cast("list[str]", old.get("required", [])))
    after = set(cast("list[str]", new.get("required", [])))
    problems += [f"field {f'{path}.{name}'.lstrip('.')!r} became required" for name in sorted(after - before)]
    left_out = sorted((before - after) & set(new_fields))
    problems += [f"field {f'{path}.{name}'.lstrip('.')!r} became optional" for name in left_out]
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), Mapping) and isinstance(new.get(key), Mapping):
            problems += _compare(
                old=_object(old[key]),
                new=_object(new[key]),
                old_root=old_root,
                new_root=new_root,
                path=f"{path}[]",
                seen=seen,
            )
    for index, (left, right) in enumerate(
        zip(_list(old.get("prefixItems")), _list(new.get("prefixItems")), strict=False)
    ):
        problems += _compare(
            old=_object(left),
            new=_object(right),
            old_root=old_root,
            new_root=new_root,
            path=f"{path}[{index}]",
            seen=seen,
        )
    for left, right in zip(_variants(old), _variants(new), strict=False):
        problems += _compare(old=left, new=right, old_root=old_root, new_root=new_root, path=path, seen=seen)
    return problems


def _signature(schema: Schema, root: Schema) -> JsonValue:
    """The part of a schema that must stay equal. Fields and nested schemas are compared on their own."""
    nested = {"properties", "required", "items", "additionalProperties", "anyOf", "oneOf", "prefixItems", "$defs"}
    own: dict[str, JsonValue] = {
        key: value for key, value in schema.items() if key not in nested and key not in _ANNOTATIONS
    }
    if isinstance(choices := own.get("enum"), list):
        own["enum"] = sorted(choices, key=str)  # their order means nothing
    own["variants"] = [str(_resolve(variant, root).get("type", "")) for variant in _variants(schema)]
    own["open"] = isinstance(schema.get("additionalProperties"), Mapping)
    return own


def _variants(schema: Schema) -> list[Schema]:
    return [_object(variant) for key in ("anyOf", "oneOf") for variant in _list(schema.get(key))]


def _resolve(schema: Schema, root: Schema) -> Schema:
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    return _object(_object(root.get("$defs")).get(reference.rsplit("/", 1)[-1]))


def _object(value: JsonValue | None) -> Schema:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue | None) -> list[JsonValue]:
    return value if isinstance(value, list) else []
