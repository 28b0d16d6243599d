"""JSON that a request asks for: the arguments of a call, or an answer that follows a schema."""

from typing import TypeAlias, cast

import orjson

Json: TypeAlias = dict[str, object]


def forced_call(tools: list[Json] | None, choice: str | Json | None) -> str | None:
    """The function that `tool_choice` insists on. A model that may choose answers with text here."""
    if not tools or choice is None or choice in ("auto", "none"):
        return None
    named: Json = {} if isinstance(choice, str) else choice
    if named.get("type") in ("auto", "none"):
        return None
    for where in (named, named.get("function"), tools[0], tools[0].get("function")):
        name = cast("Json", where).get("name") if isinstance(where, dict) else None
        if isinstance(name, str):
            return name
    raise ValueError("each tool needs a name")


def arguments(tools: list[Json] | None, call: str | None) -> str | None:
    """Arguments of the call that follow the schema of its function; None where words do as the argument `text`."""
    for tool in tools or () if call is not None else ():
        described: object = tool.get("function", tool)
        function = cast("Json", described) if isinstance(described, dict) else {}
        schema: object = function.get("parameters", function.get("input_schema"))
        properties: object = cast("Json", schema).get("properties") if isinstance(schema, dict) else None
        if function.get("name") == call and isinstance(properties, dict) and properties and "text" not in properties:
            root = cast("Json", schema)
            return orjson.dumps(_instance(root, root)).decode()
    return None


def document(form: Json | None) -> str | None:
    """JSON of the asked form: the first value that its schema names, or an empty one of its type."""
    kind = (form or {}).get("type")
    if kind == "json_object":
        return "{}"
    if kind != "json_schema":
        return None
    named = (form or {}).get("json_schema", form)
    schema: object = cast("Json", named).get("schema") if isinstance(named, dict) else None
    root = cast("Json", schema) if isinstance(schema, dict) else {}
    return orjson.dumps(_instance(root, root)).decode()


def _instance(schema: Json, root: Json) -> object:
    """`root` has the definitions that `$ref` names. A list has one element."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _instance(_member(root.get("$defs"), reference.rpartition("/")[2]), root)
    items = schema.get("items")
    if isinstance(items, dict):
        return [_instance(cast("Json", items), root)]
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return cast("list[object]", values)[0]
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return {name: _instance(_member(cast("Json", properties), name), root) for name in cast("Json", properties)}
    empty: Json = {"string": "", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}
    return empty.get(str(schema.get("type")))


def _member(of: object, name: str) -> Json:
    member = cast("Json", of).get(name) if isinstance(of, dict) else None
    return cast("Json", member) if isinstance(member, dict) else {}
