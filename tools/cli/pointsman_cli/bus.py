"""The command's own connection to NATS: plain nats-py with the login that services use."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import nats.errors
from nats.aio.client import DEFAULT_RECONNECT_TIME_WAIT, Client
from nats.aio.msg import Msg

from pointsman_cli.words import CommandError
from pointsman_contracts.message import MalformedMessage, Message
from pointsman_contracts.subjects import inbox, subject
from pointsman_contracts.timing import TIMES
from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_runtime.configuring.settings import ServiceSettings, SettingsError, load
from pointsman_runtime.configuring.urls import without_login

CONNECT_TIMEOUT_S = 5
RESET_ATTEMPTS = 5

M = TypeVar("M", bound=Message)
OnError = Callable[[Exception], Awaitable[None]]
"""Called with errors of a connection that stays, such as a subject that isn't permitted."""


def settings(url: str | None) -> ServiceSettings:
    """Settings from the environment as a service reads them; `url` has precedence. CommandError when wrong."""
    try:
        found = load(ServiceSettings) if url is None else load(ServiceSettings, nats_url=url)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    TIMES.set(found.times)
    return found


@asynccontextmanager
async def connected(
    login: ServiceSettings, name: str = "pointsman", on_error: OnError | None = None
) -> AsyncGenerator[Client]:
    """A connection for the length of a `with`. Raises CommandError when no server answers or it refuses the login."""
    client = await _logged_in(login, name, on_error)
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    client.options["reconnect_time_wait"] = DEFAULT_RECONNECT_TIME_WAIT
    try:
        yield client
    finally:
        await client.close()


async def gather_answers(
    client: Client, question: Message, answer: type[M], *, first_s: float, quiet_s: float
) -> list[M]:
    """The answers of all services that this question reaches: empty when none comes within `first_s`, complete after
    `quiet_s` without another one. Answers of another version that can't be read are left out."""
    answers: asyncio.Queue[M] = asyncio.Queue()
    told: list[M] = []
    reply = client.new_inbox()

    async def heard(message: Msg) -> None:
        with suppress(MalformedMessage):  # `pointsman doctor` reports versions
            if message.data:
                answers.put_nowait(answer.decode(message.data))

    await client.subscribe(reply, cb=heard)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    await client.publish(subject(type(question)), question.encode(), reply=reply)
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(quiet_s if told else first_s):
                told.append(await answers.get())
    return told


async def _logged_in(login: ServiceSettings, name: str, on_error: OnError | None) -> Client:
    attempts = RESET_ATTEMPTS
    while True:
        try:
            return await _connect(login, name, on_error)
        except ConnectionResetError as error:
            # A server that refuses a login closes at once, and the reset can overtake the line with the reason.
            attempts -= 1
            if not attempts:
                raise _unanswered(login, _words(error)) from error


async def _connect(login: ServiceSettings, name: str, on_error: OnError | None) -> Client:
    """A client that is logged in. Raises ConnectionResetError when the server closed without a reason, else
    CommandError."""
    try:
        client = LastingClient(login.nats_tls())
    except SettingsError as error:
        raise CommandError(str(error)) from error
    failures: list[Exception] = []

    async def note(error: Exception) -> None:
        failures.append(error)
        if on_error is not None:
            await on_error(error)

    credentials = login.nats_login
    try:
        await client.connect(
            login.nats_servers,
            name=name,
            connect_timeout=CONNECT_TIMEOUT_S,
            # A server that isn't there now is an answer; one that was there is waited for. nats-py takes the first for
            # servers that say no and the others for those that can't be reached, and tries these twice at least.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            user=credentials.user,
            password=credentials.password,
            token=credentials.token,
            user_credentials=credentials.credentials_file,
            # A login may use only its own inboxes. Unlike a service's, these needn't differ between runs.
            inbox_prefix=inbox(credentials.user) if credentials.user else "_INBOX",
            # Without a callback nats-py prints errors. The exception of a failed connection has less detail than this
            # one.
            error_cb=note,
        )
    except (OSError, TimeoutError, nats.errors.Error) as error:
        await client.close()
        if any("authorization" in str(each).lower() for each in (error, *failures)):
            raise CommandError(
                f"the NATS server at {shown(login)} refuses this login.",
                "Log in as services do, with POINTSMAN_NATS_USER and _PASSWORD, _TOKEN, or _CREDENTIALS_FILE.",
            ) from error
        told = failures[-1] if failures else error
        closed = isinstance(told, ConnectionResetError | BrokenPipeError)
        # With TLS the same shows as words after the end.
        if closed or (isinstance(told, ssl.SSLError) and not isinstance(told, ssl.SSLCertVerificationError)):
            raise ConnectionResetError(*told.args) from error
        reason = _words(told)
        raise _unanswered(login, reason) from error
    return client


def _unanswered(login: ServiceSettings, reason: str) -> CommandError:
    return CommandError(
        f"no NATS server answers at {shown(login)}: {reason}.",
        "Start one with `pointsman up`, or name another with --nats or POINTSMAN_NATS_URL.",
    )


def shown(login: ServiceSettings) -> str:
    """The servers without user and password."""
    return ", ".join(without_login(server) for server in login.nats_servers)


def _words(error: Exception) -> str:
    if isinstance(error, socket.gaierror):  # its number is the resolver's
        return str(error.strerror).lower()
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"no word within {CONNECT_TIMEOUT_S} s"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error).removeprefix("nats: ") or type(error).__name__
