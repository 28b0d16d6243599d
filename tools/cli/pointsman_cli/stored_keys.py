"""API keys of clients that the bus holds: kept, and taken back."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from nats.js.api import KeyValueConfig
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NoKeysError, NotFoundError
from nats.js.kv import KeyValue
from pydantic import ValidationError

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_contracts.api_key import KEYS_BUCKET, ApiKey

_ANSWER_S: Final = 5.0


async def store(url: str | None, digest: str, record: ApiKey) -> None:
    """Keep a key where every preprocessor with `stored: true` finds it. CommandError when the server can't."""
    async with _opened(url) as bucket:
        await bucket.put(digest, record.encode())


async def revoke(url: str | None, name: str) -> int:
    """Forget the stored keys of this name; returns how many there were. CommandError without any."""
    found = 0
    async with _opened(url) as bucket:
        try:
            digests = await bucket.keys()  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        except NoKeysError:
            digests = []
        for digest in digests:
            try:
                record = ApiKey.decode((await bucket.get(digest)).value or b"")
            except ValidationError:
                continue
            if record.id == name:
                await bucket.delete(digest)
                found += 1
    if not found:
        raise CommandError(f"no stored key is called {name!r}.")
    return found


@asynccontextmanager
async def _opened(url: str | None) -> AsyncGenerator[KeyValue]:
    login = bus.settings(url)
    async with bus.connected(login, "pointsman policy") as client:
        js = client.jetstream(timeout=_ANSWER_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        try:
            try:
                bucket = await js.key_value(KEYS_BUCKET)
            except NotFoundError:
                config = KeyValueConfig(bucket=KEYS_BUCKET, replicas=login.buckets_replicas)
                bucket = await js.create_key_value(config)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            yield bucket
        except (JetStreamError, TimeoutError) as error:
            raise CommandError(
                f"the stored keys can't be reached: {str(error) or 'no answer from JetStream'}.",
                "`pointsman doctor` says what is wrong with the server.",
            ) from error
