"""API keys of clients that the bus holds: created, listed, revoked; each change is published."""

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Literal

from msgspec.structs import asdict
from nats.aio.client import Client
from nats.js.api import KeyValueConfig
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NoKeysError, NotFoundError
from nats.js.kv import KeyValue

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_contracts.api_key import KEYS_BUCKET, ApiKey, ApiKeyChanged
from pointsman_contracts.headers import MESSAGE_ID, TYPE
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.subjects import subject
from pointsman_core.plugins import did_you_mean
from pointsman_runtime.jetstream.stores import DESCRIPTIONS

_ANSWER_S: Final = 5.0
_SOURCE: Final = f"pointsman-{os.getpid()}-{time.time_ns()}"


class StoredKeys:
    """The bucket. Use `opened`."""

    def __init__(self, client: Client, bucket: KeyValue) -> None:
        self._client = client
        self._bucket = bucket
        self._sequence = 0

    async def store_key(self, digest: str, record: ApiKey) -> None:
        """Keep a key where every preprocessor with `stored: true` finds it. CommandError for a name that is taken."""
        if record.id and any(each.id == record.id for each in (await self.list_keys()).values()):
            raise CommandError(
                f"a key called {record.id!r} is stored already.",
                f"Choose another --name, or revoke that key: pointsman keys revoke {record.id}",
            )
        await self._bucket.put(digest, record.encode())
        await self._publish("created", record)

    async def list_keys(self) -> dict[str, ApiKey]:
        """Hash → key. Entries that aren't records of keys are skipped."""
        try:
            digests = await self._bucket.keys()  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        except NoKeysError:
            return {}
        found: dict[str, ApiKey] = {}
        for digest in digests:
            try:
                found[digest] = ApiKey.decode((await self._bucket.get(digest)).value or b"")
            except MalformedMessage:
                continue
        return found

    async def find_by_name(self, name: str) -> dict[str, ApiKey]:
        """Hash → key of those with this name. CommandError without any, with the likely name."""
        every = await self.list_keys()
        named = {digest: record for digest, record in every.items() if record.id == name}
        if not named:
            likely = did_you_mean(name, {record.id for record in every.values()})
            raise CommandError(
                f"no stored key is called {name!r}{f'; {likely}' if likely else '.'}",
                "`pointsman keys list` shows their names.",
            )
        return named

    async def revoke_keys(self, name: str) -> int:
        """Forget the keys of this name; returns how many there were. CommandError without any."""
        named = await self.find_by_name(name)
        for digest, record in named.items():
            await self._bucket.delete(digest)
            await self._publish("revoked", record)
        return len(named)

    async def _publish(self, action: Literal["created", "revoked"], record: ApiKey) -> None:
        self._sequence += 1
        event = ApiKeyChanged(
            source=_SOURCE,
            sequence=self._sequence,
            at_ms=time.time_ns() // 1_000_000,
            action=action,
            **{name: value for name, value in asdict(record).items() if name in ApiKeyChanged.__struct_fields__},
        )
        to = subject(ApiKeyChanged, record.id or "-")
        headers = {TYPE: ApiKeyChanged.address.type_id, MESSAGE_ID: f"{to}:{_SOURCE}:{self._sequence}"}
        await self._client.publish(to, event.encode(), headers=headers)
        await self._client.flush()


@asynccontextmanager
async def opened(url: str | None) -> AsyncGenerator[StoredKeys]:
    """The bucket on the server, for the length of a `with`. Raises CommandError when the server can't serve it."""
    login = bus.settings(url)
    async with bus.connected(login, "pointsman keys") as client:
        js = client.jetstream(timeout=_ANSWER_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        try:
            try:
                bucket = await js.key_value(KEYS_BUCKET)
            except NotFoundError:
                config = KeyValueConfig(
                    bucket=KEYS_BUCKET, description=DESCRIPTIONS[KEYS_BUCKET], replicas=login.buckets_replicas
                )
                bucket = await js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            yield StoredKeys(client, bucket)
        except (JetStreamError, TimeoutError) as error:
            raise CommandError(
                f"the stored keys can't be reached: {str(error) or 'no answer from JetStream'}.",
                "`pointsman doctor` says what is wrong with the server.",
            ) from error
