"""Stores an earlier configuration again, with a login that may: the console's own may not write."""

from typing import Final

from nats.errors import Error as NatsError

from pointsman_console.adapters.operator_login import NO_OPERATOR, LoginRefused, connect_operator
from pointsman_console.settings import ConsoleSettings
from pointsman_runtime.jetstream.stored_configuration import StoredConfiguration


class RollbackRefused(Exception):
    """It isn't stored; the text is for the page."""


class Rollback:
    """Connects for one change at a time."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings: Final = settings

    async def store_revision(self, text: str) -> int:
        """Make it the current configuration; returns its revision. Raises RollbackRefused."""
        try:
            client = await connect_operator(self._settings, "console rollback")
        except LoginRefused as error:
            raise RollbackRefused(str(error)) from error
        try:
            return await StoredConfiguration(client, self._settings.buckets_replicas).store_text(text)
        except (NatsError, TimeoutError) as error:
            hint = "" if self._settings.operator_user is not None else NO_OPERATOR
            raise RollbackRefused(f"NATS didn't store the configuration: {type(error).__name__}.{hint}") from error
        finally:
            await client.close()
