"""JSON Schemas of messages: those of msgspec, with titles, defaults and the text below each field."""

import inspect
from collections.abc import Iterator
from types import GenericAlias
from typing import Final, cast, get_args

import msgspec
from msgspec.structs import FieldInfo, fields

from pointsman_contracts.descriptions import descriptions
from pointsman_contracts.message import Blob, JsonValue, Message, Part, fields_of
from pointsman_contracts.reply import Answer

_JSON_VALUE: Final = "JsonValue"
_ANY: Final[dict[str, str]] = {"$ref": f"#/$defs/{_JSON_VALUE}"}


def schema(message: type[Message]) -> dict[str, JsonValue]:
    """The JSON Schema of one message, with `$id` set to its type id."""
    _, components = msgspec.json.schema_components((message,), schema_hook=_schema_of, ref_template="#/$defs/{name}")
    made = {kind.__name__: _finished(kind, components[kind.__name__]) for kind in _kinds(message)}
    own = made.pop(message.__name__)
    if _ANY["$ref"] in str([own, *made.values()]):
        made[_JSON_VALUE] = {}
    definitions: dict[str, JsonValue] = {"$defs": dict(sorted(made.items()))} if made else {}
    head: dict[str, JsonValue] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": message.address.type_id,
    }
    return head | definitions | own


def _schema_of(kind: type) -> dict[str, str]:
    if issubclass(kind, Blob):
        return {"format": "base64url", "type": "string"}
    raise NotImplementedError(f"a message can't have a {kind.__name__}")


def _kinds(kind: type[Part]) -> Iterator[type[Part]]:
    """The kind and those of the parts below it; one may occur twice."""
    yield kind
    for field in fields(kind):
        for part in _parts(field.type):
            yield from _kinds(part)


def _parts(annotation: object) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for each in get_args(annotation):
        yield from _parts(each)


def _finished(kind: type[Part], component: dict[str, JsonValue]) -> dict[str, JsonValue]:
    texts = descriptions(kind)
    written = cast("dict[str, dict[str, JsonValue]]", component["properties"])
    properties: dict[str, JsonValue] = {}
    required: list[JsonValue] = []
    tag = kind.__struct_config__.tag
    if tag is not None:
        title = str(kind.__struct_config__.tag_field)
        properties[title] = {"const": tag, "default": tag, "title": title.title(), "type": "string"}
    for field in fields(kind):
        if kind is Answer and field.name == "body":
            continue  # it follows the document
        properties[field.name] = _property(field, written[field.name], texts.get(field.name))
        if field.required:
            required.append(field.name)
    return {
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": properties,
        **({"required": required} if required else {}),
        "title": kind.__name__,
        "type": "object",
    }


def _property(field: FieldInfo, written: dict[str, JsonValue], text: str | None) -> dict[str, JsonValue]:
    made = cast("dict[str, JsonValue]", _plain(written))
    if not any("$ref" in each for each in (made, *cast("list[dict[str, JsonValue]]", made.get("anyOf", [])))):
        made["title"] = field.name.replace("_", " ").title()
    default = field.default
    if field.default_factory is not msgspec.NODEFAULT and not isinstance(field.default_factory, GenericAlias):
        default = field.default_factory()
    if default is not msgspec.NODEFAULT:
        made["default"] = _json(default)
    if text:
        made["description"] = text
    return dict(sorted(made.items()))


def _json(default: object) -> JsonValue:
    """A default value as it stands in a document."""
    if isinstance(default, Part):
        return fields_of(default)
    if isinstance(default, bytes):
        return default.decode()  # always empty
    return list(cast("tuple[JsonValue, ...]", default)) if isinstance(default, tuple) else cast("JsonValue", default)


def _plain(written: JsonValue) -> JsonValue:
    """A schema of msgspec without what says nothing, and with a name for the schema of any value."""
    if isinstance(written, list):
        return [_plain(each) for each in written]
    if not isinstance(written, dict):
        return written
    made = {
        name: _plain(value)
        for name, value in written.items()
        if name != "default" and (name, value) != ("items", False)
    }
    if not made:
        return dict(_ANY)
    if made.get("type") == "object":
        made.setdefault("additionalProperties", dict(_ANY))
        made.pop("propertyNames", None)
    choices = made.get("enum")
    if isinstance(choices, list):
        made["type"] = "string"
        if len(choices) == 1:
            made["const"] = choices[0]
            del made["enum"]
    return dict(sorted(made.items()))
