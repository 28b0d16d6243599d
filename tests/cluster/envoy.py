"""deploy/envoy/envoy.yaml in the cluster: Envoy asks the epp-adapter, and engines are found by the InferencePool."""

import json
import time
from typing import Any, Final

import yaml
from tests.cluster.client import Client
from tests.cluster.kube import ROOT, CommandFailed, Installation, Object, within
from tests.cluster.table import Table

NAME: Final = "envoy"
PORT: Final = 8080
SECONDS: Final = 10
OFFICIAL: Final = "/usr/local/bin/envoy"


class Envoy:
    """The pod, in the namespace of the installation."""

    def __init__(self, installation: Installation, client: Client, image: str) -> None:
        self._in = installation
        self._client = client
        self._image = image

    def check(self, table: Table) -> None:
        """Start it, send requests through it, and end it."""
        self._in.kubectl(
            "apply", "--filename", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": self._objects()})
        )
        try:
            self._in.kubectl("wait", f"pod/{NAME}", "--for=condition=Ready", "--timeout=120s")
            [pod] = self._in.objects("pods", "--field-selector", f"metadata.name={NAME}")
            through = self._client.at(f"{pod['status']['podIP']}:{PORT}")
            within(60, "an answer through Envoy", lambda: through.ask("llama-3.1-8b") == "ok")
            with through.load() as sent:
                time.sleep(SECONDS)
            table.add("complete", "Envoy and the epp-adapter", sent.requests > 0 and not sent.failed, str(sent))
            pools = self._in.shell("pointsman", "doctor")
            table.add("complete", "engines by the InferencePool", "llama-8b" in pools, "found by the metrics-collector")
        except CommandFailed as error:
            logs = self._in.kubectl("logs", NAME, "--tail=5")
            table.add("complete", "Envoy and the epp-adapter", False, f"{error}; {logs}")
        finally:
            self._in.kubectl("delete", "pod,configmap", NAME, "--ignore-not-found", "--grace-period=1")

    def _objects(self) -> list[Object]:
        document: dict[str, Any] = yaml.safe_load((ROOT / "deploy/envoy/envoy.yaml").read_text())
        resources = document["static_resources"]
        resources["listeners"][0]["address"]["socket_address"]["address"] = "0.0.0.0"  # noqa: S104 - within the cluster
        for cluster in resources["clusters"]:
            name = {"epp-adapter": "pointsman-epp-adapter", "engines": "pointsman-engine"}.get(cluster["name"])
            if name is not None:
                cluster["type"] = "STRICT_DNS"
                endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
                del endpoints[1:]
                endpoints[0]["endpoint"]["address"]["socket_address"]["address"] = f"{name}.{self._in.namespace}"
        container = {
            "name": NAME,
            "image": self._image,
            "command": [OFFICIAL, "--config-path", "/etc/envoy/envoy.yaml"],
            "ports": [{"containerPort": PORT}],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/envoy"}],
        }
        volume = {"name": "config", "configMap": {"name": NAME}}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [volume]}
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": NAME},
                "data": {"envoy.yaml": yaml.safe_dump(document)},
            },
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec},
        ]
