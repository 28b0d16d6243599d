"""Makes the copy of a request for another model. Pure."""

from collections.abc import Mapping
from typing import Final, cast

import orjson

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_apis.streams import unambiguous
from pointsman_core.json_members import edit_fields

_STATE: Final = ("previous_response_id", "conversation", "container")
"""Members that name what the first model's server keeps: another one doesn't have it."""
_RUN_THERE: Final = ("web_search_options", "mcp_servers")
"""Members by which the server runs tools by itself."""
_CLIENTS_TOOLS: Final = frozenset({"function", "custom", "local_shell"})
"""Types of tools that the client runs: a copy's calls of them are never carried out."""
_CLIENTS_DATED: Final = ("bash_", "text_editor_", "computer_", "memory_")
"""Beginnings of the same, of types with a date."""


class NotCopied(Exception):
    """The request has no copy. The text is a reason of a few words."""


def make_copy(api: Api, body: bytes, model: str) -> bytes:
    """The body of the copy: another model's, with its usage reported; every other byte as it was. Raises NotCopied for
    a request that only its first server can answer, or that does more than answer."""
    if api not in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        raise NotCopied("api")
    document, _ = unambiguous(body)
    if document is None:
        raise NotCopied("unreadable")
    if any(document.get(member) is not None for member in _STATE):
        raise NotCopied("kept state")
    if any(document.get(member) for member in _RUN_THERE) or not _tools_are_clients(document.get("tools")):
        raise NotCopied("tools of the server")
    if document.get("background"):
        raise NotCopied("background")
    edits: dict[str, bytes | None] = {"model": orjson.dumps(model)}
    if "service_tier" in document:
        # What the client pays for speed isn't spent on a copy.
        edits["service_tier"] = None
    if api is RESPONSES:
        # No request continues the copy's answer.
        edits["store"] = b"false"
    if api.usage_option and document.get("stream") is True:
        given = document.get("stream_options")
        options = cast("Mapping[str, object]", given if isinstance(given, dict) else {})
        edits["stream_options"] = orjson.dumps({**options, "include_usage": True})
    return edit_fields(body, edits)


def _tools_are_clients(tools: object) -> bool:
    if not tools:
        return True
    return isinstance(tools, list) and all(map(_is_clients, cast("list[object]", tools)))


def _is_clients(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    kind = cast("Mapping[str, object]", tool).get("type")
    return kind is None or (isinstance(kind, str) and (kind in _CLIENTS_TOOLS or kind.startswith(_CLIENTS_DATED)))
