"""`pointsman doctor` on real servers that lack something."""

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from pointsman_cli import bus
from pointsman_cli.bus import connected
from pointsman_cli.words import CommandError
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_testing import eventually
from pointsman_testing.nats_server import LocalNatsServer

POINTSMAN = str(Path(sys.executable).with_name("pointsman"))


@contextmanager
def _server(extra_config: str = "", max_payload: int = 8 * 2**20) -> Generator[LocalNatsServer]:
    server = LocalNatsServer(extra_config, max_payload=max_payload)
    server.start()
    try:
        yield server
    finally:
        server.close()


async def _doctor(url: str, **login: str) -> tuple[int, str]:
    environment = {**os.environ, **{f"POINTSMAN_NATS_{name.upper()}": value for name, value in login.items()}}
    command = [POINTSMAN, "doctor", "--nats", url]
    ran = await asyncio.to_thread(
        subprocess.run, command, check=False, capture_output=True, text=True, env=environment, timeout=60
    )
    return ran.returncode, ran.stdout + ran.stderr


async def test_a_new_server_has_small_messages_and_no_configuration() -> None:
    with _server(max_payload=2**19) as server:
        code, text = await _doctor(server.url)
    assert code == 1
    assert "✗ max_payload is 512 KiB, too small" in text
    assert "✗ the stored configuration: none is stored" in text
    assert "! the stream PM_EVENTS doesn't exist" in text
    assert "✗ neither a frontend nor an epp-adapter is heard" in text
    assert "3 failures, 2 warnings" in text


async def test_the_report_names_buckets_that_an_identity_may_not_read() -> None:
    users = """authorization { users: [ { user: reader, password: secret, permissions: {
        subscribe: ["_INBOX.>", "pm.sig.pool.>"], publish: ["$JS.API.>"] } } ] }"""
    with _server(users) as server:
        _, text = await _doctor(server.url, user="reader", password="secret")  # noqa: S106 - of this server
    assert 'not permitted: permissions violation for subscription to "pm.sig.service.presence.v1.*.*"' in text
    assert 'not permitted: permissions violation for subscription to "pm.evt.>"' in text
    assert "pm.sig.pool.snapshot" not in text


async def test_a_refused_login_is_said_in_words() -> None:
    with _server("authorization { user: someone, password: secret }") as server:
        code, text = await _doctor(server.url, user="someone", password="wrong")  # noqa: S106 - of nobody
    assert code == 1
    assert "refuses this login" in text
    assert "POINTSMAN_NATS_USER" in text
    assert "secret" not in text
    assert "wrong" not in text


async def test_a_server_that_isnt_there_is_said_at_once() -> None:
    code, text = await _doctor("nats://127.0.0.1:1")
    assert code == 1
    assert "no NATS server answers at nats://127.0.0.1:1: connection refused" in text


@pytest.mark.parametrize(
    ("url", "ca", "words"),
    [
        ("nats://127.0.0.1:99999", None, "the port must be a number from 1 to 65535"),
        ("127.0.0.1:1", None, "must begin with nats:// or tls://"),
        ("nats://127.0.0.1:1", "/nowhere.pem", "POINTSMAN_NATS_TLS_CA"),
    ],
)
async def test_settings_that_are_wrong_are_said_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch, url: str, ca: str | None, words: str
) -> None:
    if ca is not None:
        monkeypatch.setenv("POINTSMAN_NATS_TLS_CA", ca)
    with pytest.raises(CommandError, match=words):
        async with connected(bus.settings(url)):
            pass


async def test_an_unknown_host_name_is_reported_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name or service not known")))
    with pytest.raises(CommandError, match=r"at nats://nobody\.invalid: name or service not known\."):
        async with connected(ServiceSettings(nats_url="nats://nobody.invalid", nats_insecure=True)):
            pass


async def test_a_server_that_says_nothing_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(CommandError, match=f"at {url}: no word within 0.1 s"):
            async with connected(ServiceSettings(nats_url=url)):
                pass


async def test_a_server_that_was_there_is_waited_for() -> None:
    with _server() as server:
        async with connected(ServiceSettings(nats_url=server.url)) as client:
            server.kill()
            await eventually(lambda: not client.is_connected)
            server.start()
            await eventually(lambda: client.is_connected)


async def test_a_refusal_that_a_reset_overtook_is_asked_for_again() -> None:
    """A server closes with the client's bytes unread, so its last line can be lost on the way."""
    resets = 2
    seen = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.write(b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1048576, "auth_required": true}\r\n')
        await reader.readline()
        if seen <= resets:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CommandError, match="refuses this login"):
            async with connected(ServiceSettings(nats_url=f"nats://127.0.0.1:{port}")):
                pass
    assert seen == resets + 1
