"""The schema of a structured answer, as Anthropic's API takes it, of its own or by Bedrock.

It refuses a schema with keywords that its grammar can't hold (BerriAI/litellm #34319, vercel/ai #14372 and #17597), and
objects that may have further members. A keyword that goes is told in the description, as Anthropic's own SDKs do; the
model follows it as a hint.
"""

from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_providers.chat_messages import Fields

_HINTS: Final = frozenset(
    (
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"),
        *("minProperties", "maxProperties", "patternProperties", "propertyNames", "not", "if", "then", "else"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "prefixItems"),
    )
)
"""Keywords that it refuses."""
_FEW_ITEMS: Final = (0, 1)
"""Values of `minItems` that it takes."""
_NAMED: Final = ("properties", "$defs", "definitions")
"""Keywords whose members are schemas by name."""
_LISTS: Final = ("anyOf", "allOf", "oneOf")


def answer_schema(schema: Fields) -> Fields:
    """The schema with the keywords that Anthropic's API takes; the same object where it needs no change."""
    changed = _taken(schema)
    return schema if changed == schema else changed


def _taken(schema: Fields) -> Fields:
    kept: Fields = {}
    hints: list[str] = []
    for name, value in schema.items():
        if name in _HINTS or (name == "minItems" and value not in _FEW_ITEMS):
            hints.append(f"{name}: {orjson.dumps(value).decode()}")
        elif name in _NAMED and isinstance(value, dict):
            kept[name] = {each: _inner(inner) for each, inner in value.items()}
        elif name in _LISTS and isinstance(value, list):
            kept["anyOf" if name == "oneOf" else name] = [_inner(each) for each in value]
        elif name == "items":
            kept[name] = _inner(value)
        else:
            kept[name] = value
    if kept.get("type") == "object" or "properties" in kept:
        kept["additionalProperties"] = False
    if hints:
        said = kept.get("description")
        kept["description"] = " ".join([*([str(said)] if said else []), f"({'; '.join(hints)})"])
    return kept


def _inner(value: JsonValue) -> JsonValue:
    return cast("JsonValue", _taken(value)) if isinstance(value, dict) else value
