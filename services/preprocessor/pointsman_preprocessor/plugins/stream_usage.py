"""`stream-usage`: streamed answers end with their usage, so that tokens can be counted."""

from pydantic import JsonValue

from pointsman_core.plugins import Key
from pointsman_plugins.preprocessing import Incoming, RequestProcessor

USAGE_ADDED: Key[bool] = Key("usage_added", bool)
"""True when the client didn't ask for the usage that its stream will end with."""


class StreamUsage(RequestProcessor):
    """Sets `stream_options.include_usage` of streamed chats and completions; other options stay. A client that didn't
    ask for the usage doesn't see it."""

    type_name = "stream-usage"
    produces = (USAGE_ADDED,)

    def process(self, incoming: Incoming) -> None:
        if incoming.field("stream") is not True or not incoming.body.api.usage_option:
            return
        given = incoming.field("stream_options")
        options: dict[str, JsonValue] = dict(given) if isinstance(given, dict) else {}
        if options.get("include_usage") is True:
            return
        incoming.set_field("stream_options", options | {"include_usage": True}, unasked=True)
        incoming.write(USAGE_ADDED, True)
