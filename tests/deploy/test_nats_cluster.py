"""The three servers of deploy/k8s/overlays/production, as processes: they find each other over TLS, and one may go."""

import sys
from pathlib import Path

import pytest
import yaml
from nats.js.errors import Error as JetStreamError

from pointsman_cli import bus
from pointsman_cli.config.stored_configuration import ConfigurationStore
from pointsman_cli.keys import logins
from pointsman_cli.words import CommandError
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET
from pointsman_testing import Processes, ServiceProcess, eventually
from pointsman_testing.nats_pod import NatsPod
from pointsman_testing.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = ROOT / "services/epp-adapter/tests/certificates"
SERVER = str(Path(sys.executable).with_name("nats-server"))

pytestmark = pytest.mark.timeout(300)


class Cluster:
    """Servers, and how to log in as the operator."""

    def __init__(self, folder: Path, processes: Processes, ports: list[int]) -> None:
        self.clients, self._peers = ports[:3], ports[3:]
        logins.write(folder, [], [], kubernetes=True)
        rendered = yaml.load_all((ROOT / "deploy/k8s/overlays/production/pointsman.yaml").read_text(), yaml.CSafeLoader)
        self._objects = [each for each in rendered if each]
        password = (folder / "credentials/operator.env").read_text().rpartition("=")[2].strip()
        self.settings = ServiceSettings.model_validate(
            {
                "nats_url": ",".join(f"tls://127.0.0.1:{port}" for port in self.clients),
                "nats_user": "operator",
                "nats_password": password,
                "nats_tls_ca": CERTIFICATES / "first.crt",
            }
        )
        self.servers = [self._start(number, folder, processes) for number in range(3)]

    def _start(self, number: int, folder: Path, processes: Processes) -> ServiceProcess:
        pod = NatsPod(
            self._objects, folder / str(number), folder / "secrets.yaml", CERTIFICATES / "first.crt", number=number
        )
        pod.change(
            {
                "http: 8222": "http: 127.0.0.1:-1",
                "listen: 0.0.0.0:6222": f"listen: 127.0.0.1:{self._peers[number]}",
                **{
                    f"nats://pointsman-nats-{other}.pointsman-nats-peers:6222": f"nats://127.0.0.1:{port}"
                    for other, port in enumerate(self._peers)
                },
            }
        )
        return processes.start_command(
            [SERVER, "--config", str(pod.config), "--addr", "127.0.0.1", "--port", str(self.clients[number])],
            env=pod.environment,
        )


@pytest.fixture
def ports() -> list[int]:
    """Six that are free: the servers name each other's before they listen."""
    found: set[int] = set()
    while len(found) < 6:
        found.add(free_port())
    return list(found)


async def test_stored_data_outlives_one_server_of_three(tmp_path: Path, processes: Processes, ports: list[int]) -> None:
    cluster = Cluster(tmp_path, processes, ports)

    async def stored(text: str, settings: ServiceSettings) -> int | None:
        try:
            async with bus.connected(settings) as client:
                return await ConfigurationStore(client, replicas=3).store_text(text)
        except (CommandError, JetStreamError, TimeoutError):
            return None  # no leader yet

    # A server that is slow may have stored what it didn't acknowledge in time, and does it again.
    first = await eventually(lambda: stored("pools: {}", cluster.settings), timeout=90)
    async with bus.connected(cluster.settings) as client:
        js = client.jetstream(timeout=30.0)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
        info = await js.stream_info(f"KV_{CONFIG_BUCKET}")
        assert info.config.num_replicas == 3
    cluster.servers[0].kill()
    others = cluster.settings.model_copy(
        update={"nats_url": ",".join(f"tls://127.0.0.1:{port}" for port in cluster.clients[1:])}
    )
    assert await eventually(lambda: stored("pools: {a: {}}", others), timeout=90) > first
