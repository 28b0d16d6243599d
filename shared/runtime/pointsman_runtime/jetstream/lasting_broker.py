"""FastStream's broker, on a connection that lasts."""

from collections.abc import Awaitable, Callable

from faststream.nats import NatsBroker
from faststream.nats.security import NatsCredentials, NatsSecurity, NatsToken, NatsUserPassword
from nats.aio.client import Client

from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_runtime.configuring.settings import ServiceSettings


class LastingBroker(NatsBroker):
    """Connects until it is stopped, whatever the server says."""

    def tell(self, failed: Callable[[Exception], Awaitable[None]]) -> None:
        """Call `failed` with what goes wrong. FastStream's own `error_cb` ends connecting for good when a login is
        refused."""
        self._connection_kwargs["error_cb"] = failed

    async def _connect(self) -> Client:
        client = LastingClient()
        await client.connect(**self._connection_kwargs)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        self.config.connect(client)
        return client


def security(settings: ServiceSettings) -> NatsSecurity:
    """How the broker logs in."""
    login, tls = settings.nats_login, settings.nats_tls()
    if login.credentials_file:
        return NatsCredentials.from_file(login.credentials_file, ssl_context=tls)
    if login.token:
        return NatsToken(login.token, ssl_context=tls)
    if login.user and login.password:
        return NatsUserPassword(login.user, login.password, ssl_context=tls)
    return NatsSecurity(ssl_context=tls)
