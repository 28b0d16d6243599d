"""API keys in key-value buckets."""

from collections.abc import Callable
from typing import Final

from pointsman_preprocessor.domain.api_keys import KeyFacts, KeyStore, KeyTable, stored_key
from pointsman_runtime.buckets import Bucket, Entry
from pointsman_runtime.logs import Log

_log = Log("api-keys")


class KeyBuckets(KeyStore):
    """Watches each bucket that is asked for, for the life of the process."""

    def __init__(self, open_bucket: Callable[[str], Bucket]) -> None:
        self._open: Final = open_bucket
        self._tables: Final[dict[str, KeyTable]] = {}
        self._listed: Final[set[str]] = set()

    def follow(self, bucket: str) -> None:
        """As `KeyStore.follow`."""
        if bucket in self._tables:
            return
        table = self._tables[bucket] = KeyTable()

        def put(entry: Entry) -> None:
            try:
                table.put(entry.key.lower(), stored_key(entry.value))
            except ValueError:
                # Its words may quote what somebody put there by mistake, a key for one.
                table.remove(entry.key.lower())
                _log.warning("api_key_unusable", bucket=bucket, key=entry.key[:12], hint="not a record of a key")

        self._open(bucket).watch(put, lambda key: table.remove(key.lower()), lambda: self._listed.add(bucket))

    def missing(self, bucket: str) -> str | None:
        """As `KeyStore.missing`. What was read before the connection was lost still counts."""
        return None if bucket in self._listed else f"the keys of bucket {bucket} haven't been read yet"

    def find(self, bucket: str, digest: str) -> KeyFacts | None:
        """As `KeyStore.find`."""
        table = self._tables.get(bucket)
        return None if table is None else table.find(digest)
