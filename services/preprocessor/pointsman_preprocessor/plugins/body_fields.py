"""Fields of the body that engines get: `stream-usage`, `tenant-salt`."""

import hashlib
from typing import Final

from pydantic import JsonValue

from pointsman_core.plugins import Key
from pointsman_plugins.preprocessing import ENGINE_SALT, IDENTITY, Incoming, RequestProcessor

USAGE_ADDED: Key[bool] = Key("usage_added", bool)
"""True when the client didn't ask for the usage that ends its stream."""


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


SALT_BYTES: Final = 16


class TenantSalt(RequestProcessor):
    """Sets the body's `cache_salt` from the tenant and the salt that the client sent, if any.

    It needn't be secret: every request's salt is derived here, from its own tenant.
    """

    type_name = "tenant-salt"
    consumes = (IDENTITY,)
    produces = (ENGINE_SALT,)

    def process(self, incoming: Incoming) -> None:
        tenant = str((incoming.read(IDENTITY) or {}).get("tenant") or "")
        if not tenant:
            return
        given = incoming.field("cache_salt")
        text = f"{len(tenant)}:{tenant}{given if isinstance(given, str) else ''}"
        salt = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=SALT_BYTES).hexdigest()
        incoming.set_field("cache_salt", salt)
        incoming.write(ENGINE_SALT, True)
