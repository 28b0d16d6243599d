"""The configuration on the bus: every revision that the bucket keeps, and how a text becomes the current one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError, NoKeysError, NotFoundError
from nats.js.kv import KeyValue

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY, HISTORY

ANSWER_S = 5.0
"""Seconds that JetStream may take to answer."""
HISTORY_ATTEMPTS = 10


class StoredRevision(NamedTuple):
    """One revision that was applied."""

    revision: int
    text: str
    at: datetime
    """When it was applied, by the server's clock."""


class ConfigurationStore:
    """The bucket of configurations. Use `opened`."""

    def __init__(self, client: Client, replicas: int = 1) -> None:
        self.client = client
        self._replicas = replicas
        self._js: JetStreamContext = client.jetstream(timeout=ANSWER_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def put(self, text: str) -> int:
        """Make a checked text the current configuration of every service; returns its revision. A text that is already
        current keeps its revision: applying one file repeatedly would push older revisions out of the history."""
        try:
            bucket = await self._js.key_value(CONFIG_BUCKET)
        except NotFoundError:
            bucket = await self._js.create_key_value(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                KeyValueConfig(bucket=CONFIG_BUCKET, history=HISTORY, replicas=self._replicas)
            )
        document = text.encode()
        try:
            current = await bucket.get(CONFIG_KEY)
        except KeyNotFoundError:
            pass
        else:
            if current.value == document and current.revision is not None:
                return current.revision
        return await bucket.put(CONFIG_KEY, document)

    async def revisions(self) -> list[StoredRevision]:
        """The stored revisions, oldest first; the last one is current."""
        try:
            entries = await _history(await self._js.key_value(CONFIG_BUCKET))
        except (KeyNotFoundError, NotFoundError):
            return []
        return [
            # nats-py declares a number here and gives the time.
            StoredRevision(entry.revision or 0, (entry.value or b"").decode(errors="replace"), _moment(entry.created))
            for entry in entries
            if entry.operation is None
        ]

    async def current(self) -> StoredRevision:
        """The newest revision. Raises CommandError when the bucket is empty."""
        return (await self.existing())[-1]

    async def existing(self) -> list[StoredRevision]:
        """See `revisions`. Raises CommandError when the bucket is empty."""
        found = await self.revisions()
        if not found:
            raise CommandError("no configuration is stored yet.", "Store one: `pointsman config apply FILE`.")
        return found


async def _history(bucket: KeyValue) -> list[KeyValue.Entry]:
    """Every entry of the configuration. Raises KeyNotFoundError when the bucket is empty."""
    for _ in range(HISTORY_ATTEMPTS - 1):
        try:
            return await bucket.history(CONFIG_KEY)
        except NoKeysError:
            # nats-py also raises this when all entries came before it had asked for their number.
            await bucket.get(CONFIG_KEY)
    return await bucket.history(CONFIG_KEY)


@asynccontextmanager
async def opened(url: str | None) -> AsyncGenerator[ConfigurationStore]:
    """The bucket on the server, for the length of a `with`. Raises CommandError when the server can't serve it."""
    login = bus.settings(url)
    async with bus.connected(login, "pointsman config") as client:
        try:
            yield ConfigurationStore(client, login.buckets_replicas)
        except (JetStreamError, TimeoutError) as error:
            raise CommandError(
                f"the stored configuration can't be reached: {str(error) or 'no answer from JetStream'}.",
                "`pointsman doctor` says what is wrong with the server.",
            ) from error


def find(revisions: list[StoredRevision], number: int) -> StoredRevision:
    """The revision of this number. CommandError naming those there are."""
    for stored in revisions:
        if stored.revision == number:
            return stored
    kept = ", ".join(str(stored.revision) for stored in revisions)
    raise CommandError(f"revision {number} isn't kept; there are {kept}.", "`pointsman config history` shows them.")


def previous(revisions: list[StoredRevision]) -> StoredRevision:
    """The newest revision whose text differs from the current one. Raises CommandError without one."""
    current = revisions[-1]
    for stored in reversed(revisions):
        if stored.text != current.text:
            return stored
    raise CommandError(f"revision {current.revision} is the only configuration that was ever applied.")


def _moment(created: object) -> datetime:
    if not isinstance(created, datetime):
        raise CommandError("the server doesn't say when a revision was applied; it needs to be 2.10 or newer.")
    return created
