"""Stores an earlier configuration again, with a login that may: the console's own may not write."""

from typing import Final

import nats
from nats.errors import Error as NatsError

from pointsman_console.settings import ConsoleSettings
from pointsman_contracts.subjects import inbox
from pointsman_runtime.jetstream.stored_configuration import StoredConfiguration

_NO_OPERATOR: Final = (
    " The console's own login may not write: set POINTSMAN_OPERATOR_USER and POINTSMAN_OPERATOR_PASSWORD."
)


class RollbackRefused(Exception):
    """It isn't stored; the text is for the page."""


class Rollback:
    """Connects for one change at a time."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings: Final = settings

    async def store_revision(self, text: str) -> int:
        """Make it the current configuration; returns its revision. Raises RollbackRefused."""
        settings = self._settings
        own = settings.nats_login
        operator = settings.operator_user is not None
        user = settings.operator_user if operator else own.user
        secret = settings.operator_password
        password = (secret.get_secret_value() if secret is not None else None) if operator else own.password
        try:
            client = await nats.connect(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
                settings.nats_servers,
                name="console rollback",
                user=user,
                password=password,
                token=None if operator else own.token,
                user_credentials=None if operator else own.credentials_file,
                tls=settings.nats_tls(),
                inbox_prefix=inbox(user) if user else "_INBOX",
                allow_reconnect=False,
                connect_timeout=5,
            )
        except (OSError, NatsError, TimeoutError) as error:
            reason = type(error).__name__
            raise RollbackRefused(f"NATS refuses the operator's login, or doesn't answer: {reason}.") from error
        try:
            return await StoredConfiguration(client, settings.buckets_replicas).store_text(text)
        except (NatsError, TimeoutError) as error:
            hint = "" if operator else _NO_OPERATOR
            raise RollbackRefused(f"NATS didn't store the configuration: {type(error).__name__}.{hint}") from error
        finally:
            await client.close()
