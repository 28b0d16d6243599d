"""FastStream's broker, on a connection that lasts."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from faststream.nats import NatsBroker
from faststream.nats.security import NatsCredentials, NatsSecurity, NatsToken, NatsUserPassword
from nats.aio.client import Client

from pointsman_runtime.bus.connection import Login
from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_runtime.reaching.tls_files import TlsFiles


class EventServer(Protocol):
    """The NATS servers of a process, and the limits of the event stream: its settings."""

    @property
    def nats_servers(self) -> list[str]:
        """URLs of one cluster's servers."""
        ...

    @property
    def nats_login(self) -> Login:
        """How to log in."""
        ...

    @property
    def events_max_age_s(self) -> float:
        """How long the stream keeps an event."""
        ...

    @property
    def events_max_bytes(self) -> int:
        """How much the stream keeps."""
        ...

    @property
    def events_replicas(self) -> int:
        """Copies of the stream."""
        ...

    @property
    def events_known_s(self) -> float | None:
        """How long the stream recognizes an event that is sent again; None for the default."""
        ...

    def nats_tls(self) -> TlsFiles | None:
        """The files of TLS; None for a connection without."""
        ...


class LastingBroker(NatsBroker):
    """Connects until it is stopped, whatever errors the server reports."""

    tls: TlsFiles | None = None
    """Set before it connects."""

    def report_errors_to(self, failed: Callable[[Exception], Awaitable[None]]) -> None:
        """Call `failed` with each error. FastStream's own `error_cb` ends connecting for good when a login is
        refused."""
        self._connection_kwargs["error_cb"] = failed

    async def _connect(self) -> Client:
        client = LastingClient(self.tls)
        await client.connect(**self._connection_kwargs)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        self.config.connect(client)
        return client


def security(server: EventServer) -> NatsSecurity:
    """How the broker logs in."""
    login = server.nats_login
    if login.credentials_file:
        return NatsCredentials.from_file(login.credentials_file)
    if login.token:
        return NatsToken(login.token)
    if login.user and login.password:
        return NatsUserPassword(login.user, login.password)
    return NatsSecurity()
