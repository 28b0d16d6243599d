"""The stored configuration as commands use it: errors with advice, and the revision that a person means."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.js.errors import Error as JetStreamError

from pointsman_cli import bus
from pointsman_cli.words import CommandError
from pointsman_runtime.jetstream.stored_configuration import StoredConfiguration, StoredRevision


class ConfigurationStore(StoredConfiguration):
    """The bucket of configurations. Use `opened`."""

    async def read_current(self) -> StoredRevision:
        """The newest revision. Raises CommandError when the bucket is empty."""
        return (await self.list_existing())[-1]

    async def list_existing(self) -> list[StoredRevision]:
        """See `revisions`. Raises CommandError when the bucket is empty."""
        found = await self.list_revisions()
        if not found:
            raise CommandError("no configuration is stored yet.", "Store one: `pointsman config apply FILE`.")
        return found


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
    raise CommandError(
        f"revision {number} isn't stored; stored revisions: {kept}.", "`pointsman config history` shows them."
    )


def previous(revisions: list[StoredRevision]) -> StoredRevision:
    """The newest revision whose text differs from the current one. Raises CommandError without one."""
    current = revisions[-1]
    for stored in reversed(revisions):
        if stored.text != current.text:
            return stored
    raise CommandError(f"revision {current.revision} is the only configuration that was ever applied.")
