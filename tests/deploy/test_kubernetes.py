"""The manifests of deploy/k8s: they are what the chart renders, follow the schemas of Kubernetes, and fit the services.

Not shown here: that a cluster starts them.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import yaml

from pointsman_bundle.main import GROUP, assembled
from pointsman_cli.keys import logins
from pointsman_cli.keys.permissions import AgentIdentity
from pointsman_contracts.parties import VIEWERS
from pointsman_hosting.program import Program
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.configuring.settings import ServiceSettings, load

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("dev", "production", "complete", "bundle")
SERVICES = {path.parent.name for path in (ROOT / "services").glob("*/pyproject.toml")}
EDGES = ("frontend", "epp-adapter")
DOOR = "batch"
"""Frontends connect to it for files and batches."""
BUNDLE = "gateway"
"""The deployment that runs several services in one process."""
PRE_STOP_S = 5
DRAIN_S: float = ServiceSettings.model_fields["drain_timeout_s"].default

Object = dict[str, Any]
Template = Callable[..., list[Object]]
SCRIPT = ROOT / "scripts/render_manifests.py"


def _load(overlay: str) -> list[Object]:
    return _objects(f"deploy/k8s/overlays/{overlay}/pointsman.yaml")


def _objects(path: str) -> list[Object]:
    return [each for each in yaml.load_all((ROOT / path).read_text(), yaml.CSafeLoader) if each]


RENDERED = {overlay: _load(overlay) for overlay in OVERLAYS}
SCHEMAS: Object = json.loads((ROOT / "tests/deploy/schemas/objects.json").read_text())


def _of(overlay: str, *kinds: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in RENDERED[overlay] if each["kind"] in kinds}


def _pods(overlay: str) -> dict[str, Object]:
    return {name: each["spec"]["template"] for name, each in _of(overlay, "Deployment", "StatefulSet", "Job").items()}


def _service_pods(overlay: str) -> dict[str, Object]:
    """By name of the service."""
    return {
        name.removeprefix("pointsman-"): pod
        for name, pod in _pods(overlay).items()
        if pod["metadata"]["labels"].get("pointsman-role") == "service"
    }


def _environment(overlay: str, container: Object) -> dict[str, str]:
    """As the container sees it, with values of Secrets as `pointsman nats users` writes them."""
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            found |= _of(overlay, "ConfigMap")[source["configMapRef"]["name"]]["data"]
        else:
            found |= {"POINTSMAN_NATS_USER": "somebody", "POINTSMAN_NATS_PASSWORD": "secret"}
    return found | {each["name"]: each.get("value", "from-the-pod") for each in container.get("env", [])}


def _own(pod: str, service: str) -> str:
    """The prefix of a service's settings in a pod."""
    return f"POINTSMAN_{service.upper().replace('-', '_')}_" if pod == BUNDLE else "POINTSMAN_"


@pytest.mark.requirement("DEPLOY-1")
def test_every_manifest_is_what_the_chart_renders(template: Template) -> None:
    template()  # skips where there is no renderer
    ran = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_comment_in_the_values_changes_no_manifest(template: Template, tmp_path: Path) -> None:
    template()
    folder = tmp_path / "scripts"
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    values = tmp_path / "deploy/helm/pointsman/values.yaml"
    values.write_text(f"# A comment.\n{values.read_text()}# Another one.\n")
    command = [sys.executable, str(folder / "render_manifests.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    values.write_text(values.read_text().replace("storage: 10Gi", "storage: 11Gi"))
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1


def test_without_a_renderer_the_check_says_that_it_compared_nothing() -> None:
    program = f"""
import runpy, sys
sys.modules["helm_python"] = None
sys.argv = [{str(SCRIPT)!r}, "--check"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env={"PATH": "/nonexistent"}
    )
    assert ran.returncode == 0
    assert "not rendered and not compared" in ran.stderr


def _problems(definition: str, each: Object) -> list[str]:
    """The faults of an object by a definition of the schemas."""
    schema = {"$ref": f"#/definitions/{definition.replace('/', '~1')}", "definitions": SCHEMAS["definitions"]}
    found = jsonschema.Draft7Validator(schema).iter_errors(each)  # pyright: ignore[reportUnknownMemberType] - an overload of it is untyped
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


@pytest.mark.requirement("DEPLOY-1")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_follows_its_schema(overlay: str) -> None:
    for each in RENDERED[overlay]:
        kind = f"{each['apiVersion']} {each['kind']}"
        assert _problems(SCHEMAS["kinds"][kind], each) == [], f"{kind} {each['metadata']['name']}"


def test_the_schemas_find_a_misspelt_field_and_a_wrong_type() -> None:
    deployment = _of("dev", "Deployment")["pointsman-scheduler"]
    kind = SCHEMAS["kinds"]["apps/v1 Deployment"]
    for wrong in ({"replica": 2}, {"replicas": "2"}, {"template": {"spec": {"containers": [{"nam": "a"}]}}}):
        assert _problems(kind, {**deployment, "spec": {**deployment["spec"], **wrong}})


@pytest.mark.requirement("S1-5")
def test_every_service_of_the_project_is_there_in_the_version_of_this_repository() -> None:
    assert set(_service_pods("complete")) == SERVICES - {"worker-agent"}
    assert set(_service_pods("dev")) == set(_service_pods("production")) <= set(_service_pods("complete"))
    [bundle] = _service_pods("bundle")[BUNDLE]["spec"]["containers"]
    alone = set(_service_pods("bundle")) - {BUNDLE}
    assert alone.isdisjoint(bundle["command"][1:])
    assert alone | set(bundle["command"][1:]) == set(_service_pods("production"))
    [chart] = yaml.safe_load_all((ROOT / "deploy/helm/pointsman/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("pointsman-runtime")
    for overlay in OVERLAYS:
        for name, pod in _pods(overlay).items():
            assert pod["metadata"]["labels"]["app.kubernetes.io/version"] == chart["version"]
            for container in pod["spec"]["containers"]:
                if name != "pointsman-nats":
                    image, _, tag = container["image"].partition(":")
                    member = image.removeprefix("pointsman/")
                    assert [top for top in ("services", "tools") if (ROOT / top / member / "pyproject.toml").is_file()]
                    assert tag == chart["version"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_may_do_more_than_it_should(overlay: str) -> None:
    accounts = _of(overlay, "ServiceAccount")
    assert not any(account["automountServiceAccountToken"] for account in accounts.values())
    for name, pod in _pods(overlay).items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["serviceAccountName"] in accounts
        # Only who watches the cluster has a token of it.
        assert spec.get("automountServiceAccountToken", False) == (name == "pointsman-metrics-collector")
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_are_probed_where_they_answer_and_given_time_to_drain(overlay: str) -> None:
    for service, pod in _service_pods(overlay).items():
        [container] = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        environment = _environment(overlay, container)
        assert ports["metrics"] == int(environment["POINTSMAN_HTTP_PORT"])
        start = container["startupProbe"]
        waited = re.fullmatch(r"/ready\?wait_s=(\d+)", start["httpGet"]["path"])
        assert waited is not None, "a start-up probe that doesn't wait is an event every other second"
        assert int(waited[1]) < start["timeoutSeconds"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
        inside = container.get("command", ["", service])[1:]
        drains = {each: float(environment.get(f"{_own(service, each)}DRAIN_TIMEOUT_S", DRAIN_S)) for each in inside}
        # The edges of a bundle end first, then its other services.
        drain = sum(
            max((seconds for each, seconds in drains.items() if (each in EDGES) == edges), default=0.0)
            for edges in (True, False)
        )
        # Until every node has heard that the pod gets nothing new; longer where clients connect.
        waits = 3 * PRE_STOP_S if set(inside) & {*EDGES, *VIEWERS, DOOR} else PRE_STOP_S
        assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == waits
        assert pod["spec"]["terminationGracePeriodSeconds"] >= waits + drain + 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_copies_are_spread_over_hosts_where_nodes_have_no_zone(overlay: str) -> None:
    """The scheduler leaves a node out of the score that lacks the label of any one constraint."""
    for pod in _service_pods(overlay).values():
        [constraint] = pod["spec"]["topologySpreadConstraints"]
        assert constraint["topologyKey"] == "kubernetes.io/hostname"
        name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        if name != "pointsman-recorder":
            [zone] = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert zone["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
            assert zone["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": name}


def test_a_pod_with_an_engine_stays_ready_while_its_agent_has_no_bus() -> None:
    """Envoy, and every service that finds engines by their pods, sends nothing to a pod that isn't ready."""
    engine, agent = _pods("dev")["pointsman-engine"]["spec"]["containers"]
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert agent["startupProbe"]["httpGet"] == {"path": "/ready?wait_s=55", "port": "metrics"}
    assert "readinessProbe" not in agent


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_process_takes_its_environment(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [key for key in os.environ if key.startswith("POINTSMAN_")]:
        monkeypatch.delenv(variable)
    containers = [
        (service, container)
        for service, pod in _service_pods(overlay).items()
        for container in pod["spec"]["containers"]
    ]
    if overlay == "dev":
        agent = _pods(overlay)["pointsman-engine"]["spec"]["containers"][1]
        containers.append(("worker-agent", agent))
    for service, container in containers:
        environment = _environment(overlay, container)
        with monkeypatch.context() as patch:
            for variable, value in environment.items():
                if variable not in ("POD_NAME", "POD_IP", "POINTSMAN_SETTINGS"):
                    patch.setenv(variable, value)
            if service == BUNDLE:
                _check_bundle(container["command"], environment)
                continue
            if service == "worker-agent":  # what stands in the file that POINTSMAN_SETTINGS names
                patch.setenv("POINTSMAN_NATS_USER", "worker-agent/llama-8b/pointsman-engine-0")
                patch.setenv("POINTSMAN_NATS_PASSWORD", "secret")
            module = importlib.import_module(f"pointsman_{service.replace('-', '_')}.settings")
            [settings] = {
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and issubclass(value, ServiceSettings)
                and value.__module__ == module.__name__
            }
            assert load(settings).nats_servers == [environment["POINTSMAN_NATS_URL"]]


def _check_bundle(command: list[str], environment: dict[str, str]) -> None:
    """It takes its settings, and those that name one of its services are that service's."""
    assert command[0] == "pointsman-bundle"
    installed = {found.name: found for found in entry_points(group=GROUP)}
    programs = [cast("Program[ServiceSettings]", installed[name].load()) for name in command[1:]]
    settings, members = assembled(programs)
    assert settings.nats_servers == [environment["POINTSMAN_NATS_URL"]]
    assert [member.name for member in members] == command[1:]
    known = {f"POINTSMAN_{field.upper()}" for field in type(settings).model_fields} | {
        f"{_own(BUNDLE, program.name)}{field.upper()}"
        for program in programs
        for field in program.settings.model_fields
    }
    assert set(environment) <= known


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_secret_is_one_that_the_command_writes(overlay: str, tmp_path: Path) -> None:
    logins.write(tmp_path, [AgentIdentity("llama-8b", "pointsman-engine-0")], [], kubernetes=True)
    written = {each["metadata"]["name"] for each in yaml.safe_load_all((tmp_path / "secrets.yaml").read_text())}
    used: set[str] = set()
    for pod in _pods(overlay).values():
        for container in pod["spec"]["containers"]:
            used |= {each["secretRef"]["name"] for each in container.get("envFrom", []) if "secretRef" in each}
        used |= {each["secret"]["secretName"] for each in pod["spec"].get("volumes", []) if "secret" in each}
    # The certificate comes from the cluster's own issuer.
    assert used - written == ({"pointsman-nats-tls"} if overlay != "dev" else set())
    if overlay == "dev":
        [agents] = [
            each
            for each in yaml.safe_load_all((tmp_path / "secrets.yaml").read_text())
            if each["metadata"]["name"] == "pointsman-nats-agents"
        ]
        [mount] = [
            each
            for each in _pods("dev")["pointsman-engine"]["spec"]["containers"][1]["volumeMounts"]
            if each["name"] == "logins"
        ]
        assert mount["subPathExpr"].replace("$(POD_NAME)", "pointsman-engine-0") in agents["stringData"]


def test_under_the_rules_of_production_an_agent_has_the_authority_that_its_settings_name() -> None:
    [engine] = [each for each in _objects("deploy/k8s/examples/engines.yaml") if each["kind"] == "StatefulSet"]
    pod = engine["spec"]["template"]["spec"]
    [agent] = [each for each in pod["containers"] if each["name"] == "agent"]
    authority = Path(_environment("production", agent)["POINTSMAN_NATS_TLS_CA"])
    [mount] = [each for each in agent["volumeMounts"] if Path(each["mountPath"]) == authority.parent]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert {each["path"] for each in volume["secret"]["items"]} == {authority.name}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_reference_finds_its_object(overlay: str) -> None:
    pods = [pod["metadata"]["labels"] | {"ports": pod["spec"]} for pod in _pods(overlay).values()]

    def selected(selector: dict[str, str]) -> list[Object]:
        return [pod for pod in pods if selector.items() <= pod.items()]

    for name, service in _of(overlay, "Service").items():
        found = selected(service["spec"]["selector"])
        assert found, name
        for port in service["spec"]["ports"]:
            named = {each["name"] for pod in found for each in pod["ports"]["containers"][0]["ports"]}
            assert port["targetPort"] in named, name
    for each in _of(overlay, "PodDisruptionBudget").values():
        assert len(selected(each["spec"]["selector"]["matchLabels"])) == 1
    documented = (ROOT / "docs/metrics.md").read_text()
    for scaler in _of(overlay, "HorizontalPodAutoscaler").values():
        target = _of(overlay, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"], "kubectl apply would set back what the autoscaler chose"
        for metric in scaler["spec"]["metrics"]:
            assert metric["type"] == "Resource" or f"`{metric['pods']['metric']['name']}`" in documented
    for pool in _of(overlay, "InferencePool").values():
        picker = pool["spec"]["endpointPickerRef"]
        service = _of(overlay, "Service")[picker["name"]]
        assert [port["port"] for port in service["spec"]["ports"]] == [picker["port"]["number"]]
    for route in _of(overlay, "HTTPRoute").values():
        assert {each["name"] for each in route["spec"]["parentRefs"]} <= set(_of(overlay, "Gateway"))
        assert {each["name"] for rule in route["spec"]["rules"] for each in rule["backendRefs"]} <= set(
            _of(overlay, "InferencePool")
        )


def test_in_production_nothing_stands_alone_or_open() -> None:
    for overlay in ("production", "complete", "bundle"):
        budgets = _of(overlay, "PodDisruptionBudget")
        scalers = _of(overlay, "HorizontalPodAutoscaler")
        for name, deployment in _of(overlay, "Deployment").items():
            if name == "pointsman-cli":
                continue  # nothing waits for it
            copies = scalers[name]["spec"]["minReplicas"] if name in scalers else deployment["spec"]["replicas"]
            # No request waits for a console, and its sessions are of one replica.
            assert copies >= 2 or name.removeprefix("pointsman-") in VIEWERS, name
            assert name in budgets
        nats = _of(overlay, "StatefulSet")["pointsman-nats"]["spec"]
        assert nats["replicas"] == 3
        assert "pointsman-nats" in budgets
        environment = _of(overlay, "ConfigMap")["pointsman-environment"]["data"]
        assert environment["POINTSMAN_NATS_URL"].startswith("tls://")
        assert environment["POINTSMAN_EVENTS_REPLICAS"] == environment["POINTSMAN_BUCKETS_REPLICAS"] == "3"
        everything = _of(overlay, "NetworkPolicy")["pointsman"]["spec"]
        assert everything["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in everything
        assert all(
            everything["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            for pod in _pods(overlay).values()
        )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_configuration_is_right(overlay: str) -> None:
    maps = _of(overlay, "ConfigMap")
    [stored] = [each for name, each in maps.items() if name.startswith("pointsman-configuration")]
    assert parse(stored["data"]["pointsman.yaml"]).pools


def test_the_servers_of_a_cluster_name_each_other_as_kubernetes_does() -> None:
    text = _of("production", "ConfigMap")["pointsman-nats"]["data"]["nats.conf"]
    nats = _of("production", "StatefulSet")["pointsman-nats"]
    peers = _of("production", "Service")[nats["spec"]["serviceName"]]
    assert peers["spec"]["clusterIP"] == "None"
    assert peers["spec"]["publishNotReadyAddresses"] is True
    assert re.findall(r"nats://(\S+):6222", text) == [
        f"{nats['metadata']['name']}-{number}.{peers['metadata']['name']}" for number in range(nats["spec"]["replicas"])
    ]
