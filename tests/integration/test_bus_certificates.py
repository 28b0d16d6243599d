"""A service whose NATS server asks for TLS: certificates that are renewed, broken or expired need no restart."""

import datetime
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pointsman_testing import Processes, eventually
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.processes import ServiceProcess

pytestmark = pytest.mark.timeout(240)


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def issue(name: str, issuer: Pair | None = None, *, days: int = 30) -> Pair:
    """A certificate that ends in so many days; without an issuer it is an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=40))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
    )
    return Pair(builder.sign(key if issuer is None else issuer.key, SHA256()), key)


class Secured:
    """A NATS server that asks for a client's certificate, and a service of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first, self.second = issue("first"), issue("second")
        self.write("trusted.pem", self.first.pem() + self.second.pem())
        self.write_pair("server", issue("server", self.first))
        self.write_pair("client", issue("client", self.first))
        self.server = LocalNatsServer(self.asking(self.first))
        self.server.start()
        (folder / "pointsman.yaml").write_text(yaml.safe_dump({"pools": {"llama-8b": {}}}))
        self.env = {
            "POINTSMAN_NATS_URL": self.server.url,
            "POINTSMAN_CONFIG": str(folder / "pointsman.yaml"),
            "POINTSMAN_NATS_TLS_CA": str(folder / "trusted.pem"),
            "POINTSMAN_NATS_TLS_CERT": str(folder / "client.pem"),
            "POINTSMAN_NATS_TLS_KEY": str(folder / "client.key"),
        }

    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def write_pair(self, name: str, pair: Pair) -> None:
        self.write(f"{name}.pem", pair.pem())
        self.write(f"{name}.key", pair.key_pem())

    def asking(self, authority: Pair) -> str:
        """The server's configuration that asks for certificates of this authority."""
        self.write("clients.pem", authority.pem())
        places = {name: self.folder / name for name in ("server.pem", "server.key", "clients.pem")}
        return (
            f'tls {{ cert_file: "{places["server.pem"]}", key_file: "{places["server.key"]}", '
            f'ca_file: "{places["clients.pem"]}", verify: true }}'
        )

    def restart(self, config: str) -> None:
        """Stop the server, and start it by this configuration."""
        self.server.reload(config)
        self.server.stop()
        self.server.start()


async def reasons(process: ServiceProcess) -> str:
    """The reasons why a service isn't ready, in one text; empty while it is."""
    async with aiohttp.ClientSession() as http, http.get(f"{process.http_url}/ready") as response:
        return "" if response.status == 200 else await response.text()


async def until_ready(process: ServiceProcess) -> None:
    async def ready() -> bool:
        return not await reasons(process)

    await eventually(ready, timeout=60)


def said(process: ServiceProcess, event: str) -> list[str]:
    """The reasons of these lines of its log."""
    return [str(line.get("reason")) for line in process.log_lines() if line["event"] == event]


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    found = Secured(tmp_path)
    yield found
    found.server.close()


async def test_a_service_uses_renewed_certificates_keeps_out_broken_ones_and_says_what_is_wrong(
    secured: Secured, processes: Processes
) -> None:
    service = processes.start("pointsman-scheduler", env=secured.env)
    await service.wait_ready()

    # Both ends change to certificates of another authority: what the service had at its start is of no use.
    secured.write_pair("client", issue("client", secured.second))
    secured.write_pair("server", issue("server", secured.second))
    secured.restart(secured.asking(secured.second))
    await eventually(lambda: len(said(service, "bus_connected")) == 2, timeout=60)
    await eventually(lambda: len(said(service, "events_reconnected")) == 1, timeout=60)

    secured.write("client.pem", b"-----BEGIN CERT")
    secured.restart(secured.asking(secured.second))
    await eventually(lambda: len(said(service, "bus_connected")) == 3, timeout=60)
    await eventually(lambda: len(said(service, "events_reconnected")) == 2, timeout=60)
    assert said(service, "nats_tls_unusable") == ["the file is not pem"]

    secured.write_pair("client", issue("client", secured.second))
    secured.write_pair("server", issue("server", secured.second, days=-1))
    secured.restart(secured.asking(secured.second))
    expired = "certificate verify failed: certificate has expired"
    await eventually(lambda: expired in said(service, "bus_unreachable"), timeout=60)
    assert expired in await reasons(service)
    secured.write_pair("server", issue("server", secured.second))
    secured.server.reload(secured.asking(secured.second))
    await until_ready(service)
    assert said(service, "bus_unreachable").count(expired) == 1


async def test_a_service_that_is_to_use_tls_sends_no_login_to_a_server_without(
    secured: Secured, processes: Processes
) -> None:
    secured.restart("authorization { users: [ {user: a, password: a-password} ] }")
    login = {"POINTSMAN_NATS_USER": "a", "POINTSMAN_NATS_PASSWORD": "a-password"}
    service = processes.start("pointsman-scheduler", env={**secured.env, **login})
    await eventually(
        lambda: "the settings ask for TLS, and the server doesn't offer it" in said(service, "bus_unreachable"),
        timeout=60,
    )
    config = f"{secured.asking(secured.first)}\nallow_non_tls: true\n"
    secured.restart(config)
    await service.wait_ready()
