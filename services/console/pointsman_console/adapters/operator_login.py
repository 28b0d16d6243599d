"""The operator's login, for one change at a time: the console's own may not write."""

from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from pointsman_console.settings import ConsoleSettings
from pointsman_contracts.subjects import inbox
from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_runtime.configuring.settings import SettingsError

NO_OPERATOR: Final = (
    " The console's own login may not write: set POINTSMAN_OPERATOR_USER and POINTSMAN_OPERATOR_PASSWORD."
)


class LoginRefused(Exception):
    """NATS doesn't let the operator in, or doesn't answer."""


async def connect_operator(settings: ConsoleSettings, name: str) -> Client:
    """A connection, which the caller closes. Raises LoginRefused."""
    own = settings.nats_login
    operator = settings.operator_user is not None
    user = settings.operator_user if operator else own.user
    secret = settings.operator_password
    password = (secret.get_secret_value() if secret is not None else None) if operator else own.password
    try:
        client = LastingClient(settings.nats_tls())
    except SettingsError as error:
        raise LoginRefused(str(error)) from error
    try:
        await client.connect(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            settings.nats_servers,
            name=name,
            user=user,
            password=password,
            token=None if operator else own.token,
            user_credentials=None if operator else own.credentials_file,
            inbox_prefix=inbox(user) if user else "_INBOX",
            allow_reconnect=False,
            connect_timeout=5,
        )
    except (OSError, NatsError, TimeoutError) as error:
        await client.close()
        reason = type(error).__name__
        raise LoginRefused(f"NATS refuses the operator's login, or doesn't answer: {reason}.") from error
    return client
