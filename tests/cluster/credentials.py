"""The Secrets that an installation needs: logins by `pointsman nats users`, a certificate as an issuer writes it."""

import base64
import datetime
import json
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.cluster.kube import Installation

from pointsman_cli.keys import logins
from pointsman_cli.keys.permissions import AgentIdentity

ENGINES: Final = 4
DAYS: Final = 30


def apply_logins(installation: Installation, folder: Path, *, engines: int = ENGINES) -> None:
    """Make the logins, or those of further engines, and store them in the cluster."""
    agents = [AgentIdentity("llama-8b", f"pointsman-engine-{number}") for number in range(engines)]
    logins.write(folder, agents, [], kubernetes=True)
    installation.kubectl("apply", "--filename", str(folder / "secrets.yaml"))


def apply_certificate(installation: Installation) -> None:
    """Store a certificate for the names of deploy/README.md, as a server and as a client."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pointsman-nats")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("pointsman-nats"), x509.DNSName("*.pointsman-nats-peers")]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    data = {"tls.crt": public, "ca.crt": public, "tls.key": private}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pointsman-nats-tls"},
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
    installation.kubectl("apply", "--filename", "-", text=json.dumps(secret))
