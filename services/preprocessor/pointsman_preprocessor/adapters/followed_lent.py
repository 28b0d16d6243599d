"""The bucket of identities that batches lend."""

from collections.abc import Callable
from typing import Final

from pointsman_contracts.batch import LENT_BUCKET, LentIdentity
from pointsman_contracts.message import MalformedMessage
from pointsman_preprocessor.domain.lent import LentIdentities
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

_log = Log("lent-identities")


class FollowedLent(LentIdentities):
    """Watches the bucket from the first request of a batch to the end of the process. Until the bucket is read, tokens
    are unknown, and their batch tries again."""

    def __init__(self, open_bucket: Callable[[str], Bucket]) -> None:
        self._open: Final = open_bucket
        self._known: Final[dict[str, LentIdentity]] = {}
        self._followed = False

    def find_lent(self, digest: str) -> LentIdentity | None:
        """See `LentIdentities.find_lent`."""
        if not self._followed:
            self._followed = True
            self._open(LENT_BUCKET).watch(self._put, self._remove)
        return self._known.get(digest)

    def _put(self, entry: Entry) -> None:
        try:
            self._known[entry.key] = LentIdentity.decode(entry.value)
        except MalformedMessage as error:
            self._remove(entry.key)
            _log.warning("lent_identity_unusable", key=entry.key[:12], problem=error.problem)

    def _remove(self, key: str) -> None:
        self._known.pop(key, None)
