"""The network policies that production renders let through what services connect to, and nothing else."""

import ipaddress
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]


def _rendered(overlay: str) -> list[Object]:
    text = (ROOT / f"deploy/k8s/overlays/{overlay}/pointsman.yaml").read_text()
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def _policies(objects: list[Object]) -> list[Object]:
    return [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]


def _labels(objects: list[Object]) -> dict[str, dict[str, str]]:
    """Of pods, by name."""
    return {
        each["metadata"]["name"].removeprefix("pointsman-"): each["spec"]["template"]["metadata"]["labels"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet", "Job")
    }


OBJECTS = _rendered("complete")
POLICIES = _policies(OBJECTS)
LABELS = _labels(OBJECTS)
SERVICES = sorted(name for name, labels in LABELS.items() if labels.get("pointsman-role") == "service")
README = (ROOT / "deploy/README.md").read_text()


class Peer(NamedTuple):
    """Who is at the other end: a pod beside the services, a pod of another namespace, or an address."""

    pod: dict[str, str] | None = None
    namespace: dict[str, str] | None = None
    address: str | None = None


PROVIDER = Peer(address="203.0.113.7")
NEIGHBOUR = Peer(address="10.1.2.3")
METADATA_SERVICE = Peer(address="169.254.169.254")
COLLECTOR = Peer(namespace={"kubernetes.io/metadata.name": "monitoring"})


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", [])
    )


def _is(peer: dict[str, Any], other: Peer) -> bool:
    if "ipBlock" in peer:
        networks = (peer["ipBlock"]["cidr"], *peer["ipBlock"].get("except", []))
        inside, *cut = (
            other.address is not None and ipaddress.ip_address(other.address) in ipaddress.ip_network(network)
            for network in networks
        )
        return inside and not any(cut)
    if "namespaceSelector" in peer:
        return other.namespace is not None and _matches(peer["namespaceSelector"], other.namespace)
    return other.pod is not None and _matches(peer["podSelector"], other.pod)


def _reaches(service: str, other: Peer, port: int) -> bool:
    return _reach(POLICIES, LABELS[service], other, port)


def _reach(policies: list[Object], labels: dict[str, str], other: Peer, port: int) -> bool:
    return any(
        ("to" not in rule or any(_is(peer, other) for peer in rule["to"]))
        and port in [each["port"] for each in rule["ports"]]
        for policy in policies
        if _matches(policy["podSelector"], labels)
        for rule in policy.get("egress", [])
    )


def _admits(labels: dict[str, str], other: Peer, port: int | str, policies: list[Object] = POLICIES) -> bool:
    return any(
        any(_is(peer, other) for peer in rule["from"]) and port in [each["port"] for each in rule["ports"]]
        for policy in policies
        if _matches(policy["podSelector"], labels)
        for rule in policy.get("ingress", [])
    )


def _asks_others(service: str) -> bool:
    """Whether it has a client for HTTP, providers or embeddings, and not for engines and the API server, or the
    gateway's own edges, alone."""
    asking = {"aiohttp", "pointsman-providers", "pointsman-embedding"}
    project = tomllib.loads((ROOT / "services" / service / "pyproject.toml").read_text())["project"]
    return service not in ("metrics-collector", "batch", "mirror") and bool(asking & set(project["dependencies"]))


@pytest.mark.parametrize("service", SERVICES)
def test_only_a_client_for_the_outside_reaches_it_by_tls(service: str) -> None:
    assert _reaches(service, PROVIDER, 443) == (_asks_others(service) or service == "metrics-collector")
    assert not _reaches(service, PROVIDER, 80)
    assert not _reaches(service, METADATA_SERVICE, 80)
    # The address of the API server is the cluster's own.
    assert _reaches(service, NEIGHBOUR, 443) == (service == "metrics-collector")


def test_keys_tokens_guardians_and_embeddings_are_asked_for_by_the_services_that_need_them() -> None:
    services = {"preprocessor", "epp-adapter", "frontend", "guard", "model-selector", "semantic-cache"}
    assert services == set(filter(_asks_others, SERVICES))


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_may_export_traces_and_reach_the_bus(service: str) -> None:
    assert _reaches(service, COLLECTOR, 4318)
    assert _reaches(service, Peer(pod=LABELS["nats"]), 4222)


@pytest.mark.parametrize(
    ("label", "port", "services"),
    [
        ("pointsman-engine", 8000, {"frontend", "metrics-collector"}),
        ("pointsman-guardian", 8000, {"guard"}),
        ("pointsman-embeddings", 8000, {"model-selector", "semantic-cache"}),
        ("pointsman-cache-database", 5432, {"semantic-cache"}),
    ],
)
def test_workloads_in_the_cluster_are_reached_by_their_labels(label: str, port: int, services: set[str]) -> None:
    assert {service for service in SERVICES if _reaches(service, Peer(pod={label: "true"}), port)} == services
    assert f'`{label}: "true"`' in README


def test_an_engine_of_this_project_is_reached_by_its_edges_and_its_readers() -> None:
    rendered = yaml.load_all((ROOT / "deploy/k8s/examples/engines.yaml").read_text(), yaml.CSafeLoader)
    [engine] = [each for each in rendered if each["kind"] == "StatefulSet"]
    labels = engine["spec"]["template"]["metadata"]["labels"]
    assert _admits(labels, Peer(namespace={"pointsman-gateway": "true"}), 8000)
    assert {name for name in SERVICES if _admits(labels, Peer(pod=LABELS[name]), 8000)} == {
        "frontend",
        "metrics-collector",
    }
    assert _admits(LABELS["nats"], Peer(pod=labels), 4222)


def test_a_bundle_reaches_and_admits_what_its_services_do_and_no_more() -> None:
    objects = _rendered("bundle")
    policies, labels = _policies(objects), _labels(objects)["gateway"]
    [inside] = [
        each["spec"]["template"]["spec"]["containers"][0]["command"][1:]
        for each in objects
        if each["metadata"]["name"] == "pointsman-gateway" and each["kind"] == "Deployment"
    ]
    peers = [PROVIDER, NEIGHBOUR, METADATA_SERVICE, COLLECTOR, Peer(pod=LABELS["nats"])]
    peers += [
        Peer(pod={f"pointsman-{name}": "true"}) for name in ("engine", "guardian", "embeddings", "cache-database")
    ]
    for peer in peers:
        for port in (80, 443, 4222, 4318, 5432, 6443, 8000):
            wanted = any(_reaches(service, peer, port) for service in inside)
            assert _reach(policies, labels, peer, port) == wanted, (peer, port)
    for name in ("pointsman-clients", "pointsman-gateway", "another"):
        for port in ("http", "grpc", "metrics"):
            peer = Peer(namespace={name: "true"})
            wanted = any(_admits(LABELS[service], peer, port) for service in inside)
            assert _admits(labels, peer, port, policies) == wanted, (peer, port)
    engine = LABELS["nats"] | {"app.kubernetes.io/name": "pointsman-engine", "pointsman-engine": "true"}
    assert _admits(engine, Peer(pod=labels), 8000, policies)


def test_the_documented_installation_lets_the_gateway_in() -> None:
    """The namespace that the README makes has the label that the policy of the epp-adapter asks for."""
    [policy] = [each for each in POLICIES if _matches(each["podSelector"], LABELS["epp-adapter"]) and "ingress" in each
                and {"port": "grpc"} in each["ingress"][0]["ports"]]  # fmt: skip
    [peer] = policy["ingress"][0]["from"]
    [gateway] = [each for each in OBJECTS if each["kind"] == "Gateway"]
    [command] = re.findall(r"^\$ (kubectl label namespace .*)$", README, re.MULTILINE)
    namespace, *pairs = shlex.split(command)[3:]
    assert namespace == gateway["metadata"]["namespace"]
    assert _matches(peer["namespaceSelector"], dict(pair.split("=") for pair in pairs))


@pytest.mark.parametrize(("former", "present"), [("production", "bundle"), ("bundle", "production")])
def test_pods_of_the_former_shape_keep_what_they_may_until_they_have_ended(former: str, present: str) -> None:
    """The upgrade writes the policies of the new shape at once, and nodes send connections to the former's pods for a
    moment yet. Their requests in hand ask engines to the end."""
    before, after = _by_name(_rendered(former)), _by_name(_rendered(present))
    for pod, labels in _labels(_rendered(former)).items():
        assert {*_that_know(before, labels)} <= {*_that_know(after, labels)}, pod


def _by_name(objects: list[Object]) -> dict[str, Object]:
    return {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "NetworkPolicy"}


def _that_know(policies: dict[str, Object], labels: dict[str, str]) -> list[tuple[str, str]]:
    """Policies by name that are for a pod, and those that let it reach others."""
    found = [(name, "pod") for name, policy in policies.items() if _matches(policy["podSelector"], labels)]
    for name, policy in policies.items():
        peers = [peer for rule in policy.get("ingress", []) for peer in rule.get("from", [])]
        found += [(name, "peer") for peer in peers if "podSelector" in peer and _matches(peer["podSelector"], labels)]
    return found
