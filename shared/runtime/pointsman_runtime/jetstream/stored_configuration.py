"""The configuration on the bus: every revision that the bucket keeps, and how a text becomes the current one."""

from datetime import datetime
from typing import NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.errors import KeyNotFoundError, NoKeysError, NotFoundError
from nats.js.kv import KeyValue

from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY, DESCRIPTIONS, HISTORY

ANSWER_S = 5.0
"""Seconds that JetStream may take to answer."""
HISTORY_ATTEMPTS = 10


class StoredRevision(NamedTuple):
    """One revision that was applied."""

    revision: int
    text: str
    at: datetime
    """When it was applied, by the server's clock."""


class StoredConfiguration:
    """The bucket of configurations. Every method raises nats errors and TimeoutError when JetStream can't."""

    def __init__(self, client: Client, replicas: int = 1) -> None:
        self.client = client
        self._replicas = replicas
        self._js: JetStreamContext = client.jetstream(timeout=ANSWER_S)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

    async def store_text(self, text: str) -> int:
        """Make a checked text the current configuration of every service; returns its revision. A text that is already
        current keeps its revision: applying one file repeatedly would push older revisions out of the history."""
        try:
            bucket = await self._js.key_value(CONFIG_BUCKET)
        except NotFoundError:
            bucket = await self._js.create_key_value(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                KeyValueConfig(
                    bucket=CONFIG_BUCKET,
                    description=DESCRIPTIONS[CONFIG_BUCKET],
                    history=HISTORY,
                    replicas=self._replicas,
                )
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

    async def list_revisions(self) -> list[StoredRevision]:
        """The stored revisions, oldest first; the last one is current. Raises TypeError for a server that doesn't say
        when they were stored (before 2.10)."""
        return await revisions_of(self._js)


async def revisions_of(js: JetStreamContext) -> list[StoredRevision]:
    try:
        entries = await _history(await js.key_value(CONFIG_BUCKET))
    except (KeyNotFoundError, NotFoundError):
        return []
    return [
        # nats-py declares a number here and gives the time.
        StoredRevision(entry.revision or 0, (entry.value or b"").decode(errors="replace"), _moment(entry.created))
        for entry in entries
        if entry.operation is None
    ]


async def _history(bucket: KeyValue) -> list[KeyValue.Entry]:
    """Every entry of the configuration. Raises KeyNotFoundError when the bucket is empty."""
    for _ in range(HISTORY_ATTEMPTS - 1):
        try:
            return await bucket.history(CONFIG_KEY)
        except NoKeysError:
            # nats-py also raises this when all entries came before it had asked for their number.
            await bucket.get(CONFIG_KEY)
    return await bucket.history(CONFIG_KEY)


def _moment(created: object) -> datetime:
    if not isinstance(created, datetime):
        raise TypeError("the server doesn't say when a revision was applied; it needs to be 2.10 or newer")
    return created
