"""The server configuration of docker-compose.yml, on a real server."""

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nats.aio.client import Client
from nats.errors import Error as NatsError

from pointsman_cli.keys import logins
from pointsman_cli.keys.permissions import AgentIdentity
from pointsman_contracts.subjects import inbox
from pointsman_testing import Processes, eventually

ROOT = Path(__file__).resolve().parents[2]
SERVER = str(Path(sys.executable).with_name("nats-server"))
TEXT = (ROOT / "deploy/nats/nats.conf").read_text()


def _config(folder: Path) -> Path:
    """The same file with this test's own store and port."""
    path = folder / "nats.conf"
    path.write_text(TEXT.replace("store_dir: /data", f'store_dir: "{folder / "data"}"').replace("8222", "127.0.0.1:-1"))
    return path


def test_the_server_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "POINTSMAN_NATS_PASSWORD": '"12e4"'}
    ran = subprocess.run(
        [SERVER, "-t", "--config", str(_config(tmp_path))], check=False, capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr


def test_without_a_password_it_does_not_start(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "POINTSMAN_NATS_PASSWORD"}
    ran = subprocess.run(
        [SERVER, "-t", "--config", str(_config(tmp_path))], check=False, capture_output=True, text=True, env=environment
    )
    assert ran.returncode != 0
    assert "POINTSMAN_NATS_PASSWORD" in ran.stderr


PASSWORDS = ("12e4", 'a"b', "back\\slash", "ends\\", "it's", "$HOME", "# sp ace", '\\"', "käse")


@pytest.mark.parametrize("password", PASSWORDS)
async def test_as_compose_starts_it_it_takes_any_password(password: str, tmp_path: Path, processes: Processes) -> None:
    nats = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["nats"]
    [script] = nats["command"]
    here = f"{_config(tmp_path)} --addr 127.0.0.1 --port -1 --ports_file_dir {tmp_path}"
    processes.start_command(
        [*nats["entrypoint"], script.replace("$$", "$").replace("/etc/nats/nats.conf", here)],
        env={"POINTSMAN_NATS_PASSWORD": password, "PATH": f"{Path(SERVER).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")))
    port = int((await eventually(ports.read_text)).partition("nats://127.0.0.1:")[2].partition('"')[0])
    client = Client()
    await client.connect(f"nats://127.0.0.1:{port}", user="pointsman", password=password)
    await client.close()


async def test_it_takes_large_messages_with_the_right_password_alone(tmp_path: Path, processes: Processes) -> None:
    processes.start_command(
        [
            SERVER, "--config", str(_config(tmp_path)),
            "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(tmp_path),
        ],
        env={"POINTSMAN_NATS_PASSWORD": '"12e4"'},
    )  # fmt: skip
    [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")))
    port = int((await eventually(ports.read_text)).partition("nats://127.0.0.1:")[2].partition('"')[0])
    client = Client()
    await client.connect(f"nats://127.0.0.1:{port}", user="pointsman", password="12e4")  # noqa: S106 - of this server
    assert client.max_payload == 8 * 1024 * 1024
    assert (await client.jetstream().account_info()).limits is not None  # pyright: ignore[reportUnknownMemberType]
    await client.close()
    stranger = Client()
    with pytest.raises(NatsError):
        await stranger.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=_quiet)
    await stranger.close()


async def test_a_login_that_comes_later_gets_in_and_no_connection_is_lost(tmp_path: Path, processes: Processes) -> None:
    certificates = ROOT / "services/epp-adapter/tests/certificates"
    text = (ROOT / "deploy/nats/server.conf").read_text()
    for inside, here in (
        ("/data", f'"{tmp_path / "data"}"'),
        ("/etc/nats/tls/tls.crt", f'"{certificates / "first.crt"}"'),
        ("/etc/nats/tls/tls.key", f'"{certificates / "first.key"}"'),
        ("8222", "127.0.0.1:-1"),
    ):
        text = text.replace(inside, here)
    (tmp_path / "server.conf").write_text(text)
    logins.write(tmp_path, [], [], kubernetes=False)
    server = processes.start_command(
        [SERVER, "--config", str(tmp_path / "server.conf"), "--addr", "127.0.0.1", "--port", "-1",
         "--ports_file_dir", str(tmp_path)]
    )  # fmt: skip
    [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")))
    port = int((await eventually(ports.read_text)).partition("://127.0.0.1:")[2].partition('"')[0])
    trust = ssl.create_default_context(cafile=certificates / "first.crt")

    async def connect(user: str) -> Client:
        path = tmp_path / "credentials" / f"{user.replace('/', '.')}.env"
        password = path.read_text().rpartition("=")[2].strip()
        client = Client()
        await client.connect(
            f"tls://127.0.0.1:{port}",
            user=user,
            password=password,
            tls=trust,
            inbox_prefix=inbox(user),
            error_cb=_quiet,
        )
        return client

    frontend = await connect("frontend")
    logins.write(tmp_path, [AgentIdentity("llama-8b", "engine-1")], [], kubernetes=False)
    server.signal(signal.SIGHUP)
    await eventually(lambda: "Reloaded server configuration" in server.log_text())
    await frontend.flush()
    assert frontend.stats["reconnects"] == 0
    agent = await connect("worker-agent/llama-8b/engine-1")
    await agent.close()
    await frontend.close()


async def _quiet(error: Exception) -> None:
    del error
