"""The NATS server of the chart and of every overlay, as a process with the files of its pod."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman_cli import logins
from pointsman_testing import Processes, eventually
from pointsman_testing.nats_pod import NatsPod

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATE = ROOT / "services/epp-adapter/tests/certificates/first.crt"
SERVER = str(Path(sys.executable).with_name("nats-server"))
OVERLAYS = ("dev", "production", "complete", "bundle")

Object = dict[str, Any]


def _overlay(name: str) -> list[Object]:
    text = (ROOT / f"deploy/k8s/overlays/{name}/pointsman.yaml").read_text()
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


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
