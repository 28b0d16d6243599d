"""The root of a tool's schema: OpenAI's service and MCP servers allow one without a type; Anthropic and Bedrock refuse
it."""

from pydantic import JsonValue

from pointsman_providers.chat_messages import Fields


def object_schema(given: JsonValue) -> Fields | None:
    """The schema with `type: object` at its root; None if it is one of something else."""
    if given is None or given is True:
        return {"type": "object", "properties": {}}
    if not isinstance(given, dict):
        return None
    kind = given.get("type")
    if kind == "object":
        return given
    if kind is None or (isinstance(kind, list) and "object" in kind):
        return {**given, "type": "object", **({} if given.keys() - {"type"} else {"properties": {}})}
    return None
