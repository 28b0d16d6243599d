"""The keys that the gateway's operators have made: looked up when one is shown, never listed or watched."""

import re
from collections.abc import Mapping
from typing import Final, cast

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, NotFoundError
from pydantic import JsonValue

from pointsman_console.domain.rights import configured_key
from pointsman_contracts.api_key import KEYS_BUCKET, ApiKey
from pointsman_contracts.message import MalformedMessage
from pointsman_core.config import Config, ConfigError
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY

AUTHENTICATOR: Final = "api-key-auth"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class KeysUnreachable(Exception):
    """No key can be looked up now."""


class KeyBook:
    """Stored keys, and those of the current configuration."""

    def __init__(self, events: Events) -> None:
        self._events: Final = events
        self._parsed: tuple[int, tuple[Mapping[str, JsonValue], ...]] = (0, ())

    async def find_key(self, digest: str) -> ApiKey | None:
        """The key with this digest. Raises KeysUnreachable."""
        if _DIGEST.fullmatch(digest) is None:
            return None
        if self._events.reason is not None:
            raise KeysUnreachable(self._events.reason)
        try:
            stored = await self._stored(digest)
            return stored or configured_key(await self._configured(), digest)
        except (NatsError, TimeoutError) as error:
            raise KeysUnreachable(type(error).__name__) from error

    async def _stored(self, digest: str) -> ApiKey | None:
        js = await self._events.jetstream()
        try:
            entry = await (await js.key_value(KEYS_BUCKET)).get(digest)
        except (NotFoundError, KeyNotFoundError):
            return None
        try:
            return ApiKey.decode(entry.value or b"")
        except MalformedMessage:
            return None

    async def _configured(self) -> tuple[Mapping[str, JsonValue], ...]:
        js = await self._events.jetstream()
        try:
            entry = await (await js.key_value(CONFIG_BUCKET)).get(CONFIG_KEY)
        except (NotFoundError, KeyNotFoundError):
            return ()
        revision = entry.revision or 0
        if self._parsed[0] != revision:
            self._parsed = revision, _keys((entry.value or b"").decode("utf-8", "replace"))
        return self._parsed[1]


def _keys(text: str) -> tuple[Mapping[str, JsonValue], ...]:
    try:
        config: Config = parse(text)
    except ConfigError:
        return ()
    found: list[Mapping[str, JsonValue]] = []
    for use in config.preprocessing:
        keys = use.spec.params.get("keys") if use.use == AUTHENTICATOR else None
        if isinstance(keys, list):
            entries = cast("list[object]", keys)
            found += [cast("Mapping[str, JsonValue]", each) for each in entries if isinstance(each, dict)]
    return tuple(found)
