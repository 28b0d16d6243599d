"""API keys that are stored beside the configuration."""

from collections.abc import Callable, Collection
from typing import Final

from pointsman_contracts.api_key import KEYS_BUCKET
from pointsman_preprocessor.domain.api_keys import KeyFacts, KeyStore, KeyTable, stored_key
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

_log = Log("api-keys")


class FollowedKeys(KeyStore):
    """Watches the bucket from the first configuration that needs it to the end of the process."""

    def __init__(self, open_bucket: Callable[[str], Bucket]) -> None:
        self._open: Final = open_bucket
        self._table: Final = KeyTable()
        self._followed = False
        self._listed = False

    def follow_keys(self) -> None:
        """Start to watch; see `KeyStore.follow_keys`."""
        if not self._followed:
            self._followed = True
            self._open(KEYS_BUCKET).watch(self._put, lambda key: self._table.remove(key.lower()), self._all_listed)

    def explain_missing(self) -> str | None:
        """Why keys aren't known; see `KeyStore.explain_missing`. Keys read before a lost connection stay valid."""
        return None if self._listed else "the stored keys haven't been read yet"

    def find_key(self, digest: str) -> KeyFacts | None:
        """Look a key up; see `KeyStore.find_key`."""
        return self._table.find_key(digest)

    def list_named(self, name: str) -> Collection[KeyFacts]:
        return self._table.list_named(name)

    def _all_listed(self) -> None:
        self._listed = True

    def _put(self, entry: Entry) -> None:
        try:
            self._table.store_key(entry.key.lower(), stored_key(entry.value))
        except ValueError:
            # The error's text may quote the stored value, which may be a key by mistake.
            self._table.remove(entry.key.lower())
            _log.warning("api_key_unusable", key=entry.key[:12], hint="its value isn't a record of a key")
