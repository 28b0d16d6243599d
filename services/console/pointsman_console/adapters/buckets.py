"""The pages' reads from buckets: the counts of limits, and every stored configuration."""

import asyncio
from typing import Final

from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, NotFoundError

from pointsman_contracts.batch import BATCHES_BUCKET, BatchRecord
from pointsman_contracts.limits import LIMITS_BUCKET, SHARDS, LimitShard
from pointsman_contracts.message import MalformedMessage
from pointsman_core.config import Config, ConfigError
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.jetstream.buckets import Bucket, BucketMissing
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stored_configuration import StoredRevision, revisions_of


class BucketsUnreadable(Exception):
    """JetStream doesn't answer; the text is for the page."""


class Buckets:
    """Reads; makes and writes nothing."""

    def __init__(self, events: Events) -> None:
        self._events: Final = events

    async def read_shards(self) -> list[LimitShard]:
        """Every shard of the counts. Raises BucketsUnreadable."""
        self._check_buckets()
        try:
            js = await self._events.jetstream()
            try:
                store = await js.key_value(LIMITS_BUCKET)
            except NotFoundError:
                return []

            async def one(shard: int) -> LimitShard | None:
                try:
                    return LimitShard.decode((await store.get(str(shard))).value or b"")
                except (KeyNotFoundError, MalformedMessage):
                    return None

            return [each for each in await asyncio.gather(*map(one, range(SHARDS))) if each is not None]
        except (NatsError, TimeoutError) as error:
            raise BucketsUnreadable(f"The counts of limits can't be read: {type(error).__name__}.") from error

    async def read_batches(self) -> list[BatchRecord]:
        """Every batch that is kept. Raises BucketsUnreadable."""
        self._check_buckets()
        bucket = Bucket(self._events, BATCHES_BUCKET, make=False)
        found: list[BatchRecord] = []
        try:
            for key in await bucket.list_keys(">"):
                entry = await bucket.get(key)
                if entry is not None:
                    found.append(BatchRecord.decode(entry.value))
        except BucketMissing:
            return []
        except (NatsError, TimeoutError, MalformedMessage) as error:
            raise BucketsUnreadable(f"The batches can't be read: {type(error).__name__}.") from error
        return found

    async def list_revisions(self) -> list[StoredRevision]:
        """The stored configurations, oldest first. Raises BucketsUnreadable."""
        self._check_buckets()
        try:
            return await revisions_of(await self._events.jetstream())
        except (NatsError, TimeoutError, TypeError) as error:
            raise BucketsUnreadable(f"The stored configurations can't be read: {type(error).__name__}.") from error

    async def read_configuration(self) -> Config:
        """The current one; an empty one where there is none that this version can read. Raises BucketsUnreadable."""
        stored = await self.list_revisions()
        try:
            return parse(stored[-1].text) if stored else Config()
        except ConfigError:
            return Config()

    def _check_buckets(self) -> None:
        if self._events.reason is not None:
            raise BucketsUnreadable(f"The bus can't be reached: {self._events.reason}.")
