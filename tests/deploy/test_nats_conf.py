"""The server configuration of docker-compose.yml, on a real server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

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


async def test_it_takes_the_right_password_and_large_messages_and_nobody_else(
    tmp_path: Path, processes: Processes
) -> None:
    processes.start_command(
        [
            SERVER, "--config", str(_config(tmp_path)),
            "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(tmp_path),
        ],
        env={"POINTSMAN_NATS_PASSWORD": '"12e4"'},
    )  # fmt: skip
    [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")), timeout=20)
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


async def _quiet(error: Exception) -> None:
    del error
