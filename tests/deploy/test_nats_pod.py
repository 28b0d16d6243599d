"""The NATS server of the chart and of every overlay, as a process with the files of its pod."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman_cli import bus
from pointsman_cli.keys import logins
from pointsman_cli.keys.permissions import AgentIdentity
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_testing import Processes, ServiceProcess, eventually
from pointsman_testing.nats_pod import NatsPod

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "services/epp-adapter/tests/certificates/first.crt"
SERVER = str(Path(sys.executable).with_name("nats-server"))
OVERLAYS = ("dev", "production", "complete", "bundle")

Object = dict[str, Any]


def _overlay(name: str) -> list[Object]:
    text = (ROOT / f"deploy/k8s/overlays/{name}/pointsman.yaml").read_text()
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


@pytest.mark.requirement("DEPLOY-2")
@pytest.mark.parametrize("overlay", [*OVERLAYS, "the chart with one server"])
async def test_the_server_starts_with_the_files_where_the_pod_has_them(
    overlay: str, tmp_path: Path, processes: Processes, template: Callable[..., list[Object]]
) -> None:
    objects = _overlay(overlay) if overlay in OVERLAYS else template({"nats": {"servers": 1}})
    logins.write(tmp_path, [], [], kubernetes=True)
    pod = NatsPod(objects, tmp_path / "root", tmp_path / "secrets.yaml", CERTIFICATE)
    changes = {"http: 8222": "http: 127.0.0.1:-1"}
    if "cluster {" in pod.config.read_text():
        changes["listen: 0.0.0.0:6222"] = "listen: 127.0.0.1:-1"
    pod.change(changes)
    server = processes.start_command(
        [SERVER, "--config", str(pod.config), "--addr", "127.0.0.1", "--port", "-1",
         "--ports_file_dir", str(tmp_path)],
        env=pod.environment,
    )  # fmt: skip
    await eventually(lambda: "Server is ready" in server.log_text() or server.returncode is not None)
    assert server.returncode is None, server.log_text()


def _started(
    objects: list[Object], folder: Path, processes: Processes, agents: list[AgentIdentity]
) -> tuple[NatsPod, ServiceProcess]:
    logins.write(folder, agents, [], kubernetes=True)
    pod = NatsPod(objects, folder / "root", folder / "secrets.yaml", CERTIFICATE)
    pod.change({"http: 8222": "http: 127.0.0.1:-1"})
    server = processes.start_command(
        [SERVER, "--config", str(pod.config), "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(folder)],
        env=pod.environment,
    )
    return pod, server


async def _login(folder: Path, user: str) -> ServiceSettings:
    """Settings of a login of the only server that writes its ports into this folder."""
    [ports] = await eventually(lambda: list(folder.glob("*.ports")))
    text = await eventually(ports.read_text)
    port = int(re.findall(r"://127\.0\.0\.1:(\d+)", text)[0])
    password = (folder / "credentials" / f"{user.replace('/', '.')}.env").read_text().rpartition("=")[2].strip()
    return ServiceSettings.model_validate(
        {
            "nats_url": f"tls://127.0.0.1:{port}",
            "nats_user": user,
            "nats_password": password,
            "nats_tls_ca": CERTIFICATE,
        }
    )


async def test_a_login_and_a_certificate_that_come_later_count_without_a_restart(
    tmp_path: Path, processes: Processes, template: Callable[..., list[Object]]
) -> None:
    """The pod's second container sees what the kubelet writes, and tells the server."""
    pod, server = _started(template({"nats": {"servers": 1}}), tmp_path, processes, [])
    [reload] = [each for each in pod.spec["containers"] if each["name"] == "reload"]
    [script] = reload["args"]
    for inside in ("/etc/nats", "/tmp/nats.pid"):  # noqa: S108 - the pod's
        script = script.replace(inside, str(pod.here(inside)))
    await _login(tmp_path, "operator")
    beside = processes.start_command(
        [*reload["command"], script.replace("sleep 5", "sleep 0.2")],
        env={"PATH": f"{Path(SERVER).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    logins.write(tmp_path, [AgentIdentity("llama-8b", "late")], [], kubernetes=True)
    files = {name: (tmp_path / name).read_text() for name in ("users.conf", "permissions.conf")}
    pod.write(pod.here("/etc/nats/accounts"), files)
    await eventually(lambda: "Reloaded server configuration" in server.log_text())
    async with bus.connected(await _login(tmp_path, "worker-agent/llama-8b/late")) as client:
        await client.flush()
    await eventually(lambda: "told the server" in beside.log_text())


async def test_the_end_of_a_connection_over_tls_is_no_warning(
    tmp_path: Path, processes: Processes, template: Callable[..., list[Object]], caplog: pytest.LogCaptureFixture
) -> None:
    _, server = _started(template({"nats": {"servers": 1}}), tmp_path, processes, [])
    async with bus.connected(await _login(tmp_path, "operator")) as client:
        server.kill()
        await eventually(lambda: not client.is_connected)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
