"""The CPU, memory and hosts that each overlay asks a cluster for, as deploy/README.md has them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "deploy/README.md").read_text()
OVERLAYS = ("dev", "production", "complete", "bundle")
MEBIBYTES = {"Mi": 1, "Gi": 1024}

Object = dict[str, Any]


class Needs(NamedTuple):
    """Of all pods: thousandths of a core, and MiB."""

    cpu: int = 0
    memory: int = 0

    def plus(self, other: "Needs", times: int = 1) -> "Needs":
        """Both together."""
        return Needs(self.cpu + times * other.cpu, self.memory + times * other.memory)


def _objects(overlay: str) -> list[Object]:
    text = (ROOT / f"deploy/k8s/overlays/{overlay}/pointsman.yaml").read_text()
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def _of(pod: Object) -> Needs:
    total = Needs()
    for container in pod["containers"]:
        requests = container["resources"]["requests"]
        cpu, memory = str(requests["cpu"]), requests["memory"]
        millicores = int(cpu.removesuffix("m")) if cpu.endswith("m") else int(float(cpu) * 1000)
        total = total.plus(Needs(millicores, int(memory[:-2]) * MEBIBYTES[memory[-2:]]))
    return total


def _copies(objects: list[Object]) -> Iterator[tuple[Object, int]]:
    """Deployments, StatefulSets and Jobs with the number of their pods at the start."""
    least = {
        each["metadata"]["name"]: each["spec"]["minReplicas"]
        for each in objects
        if each["kind"] == "HorizontalPodAutoscaler"
    }
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            name = each["metadata"]["name"]
            yield each, least.get(name, each["spec"].get("replicas", 1))


def needs(objects: list[Object]) -> tuple[Needs, Needs]:
    """At rest, and with one more copy of each Deployment that doesn't give one up first, in a rollout of everything."""
    total, surge = Needs(), Needs()
    for each, count in _copies(objects):
        own = _of(each["spec"]["template"]["spec"])
        total = total.plus(own, count)
        rolling = each["spec"].get("strategy", {}).get("rollingUpdate", {})
        if each["kind"] == "Deployment" and not rolling.get("maxUnavailable"):
            surge = surge.plus(own)
    return total, total.plus(surge)


@pytest.mark.requirement("DEPLOY-3")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_documented_needs_are_the_sums_of_the_requests(overlay: str) -> None:
    objects = _objects(overlay)
    rest, rollout = needs(objects)
    [row] = re.findall(rf"^\| `{overlay}` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", README, re.MULTILINE)
    figures = f"{rest.cpu / 1000:.2f}", f"{rest.memory / 1024:.1f}", f"{rollout.cpu / 1000:.2f}"
    servers = [count for each, count in _copies(objects) if each["metadata"]["name"] == "pointsman-nats"]
    assert row == (*figures, str(servers[0]))


@pytest.mark.requirement("DEPLOY-3")
def test_dev_fits_on_one_node_with_two_cores_and_4_gb_beside_kubernetes_itself() -> None:
    """kubeadm's own pods ask for nearly one core and 0.3 GiB."""
    _, rollout = needs(_objects("dev"))
    assert rollout.cpu <= 1000
    assert rollout.memory <= 3 * 1024
