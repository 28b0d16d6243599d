"""The Helm chart's own features: its configuration is applied, and its values mount files."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/pointsman"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EXAMPLE: dict[str, Any] = yaml.safe_load((CHART / "examples/mounts.yaml").read_text())
Object = dict[str, Any]
Template = Callable[..., list[Object]]


def _rendered(name: str) -> list[Object]:
    text = (ROOT / f"deploy/k8s/overlays/{name}/pointsman.yaml").read_text()
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def _pods(objects: list[Object]) -> dict[str, Object]:
    return {
        each["metadata"]["name"].removeprefix("pointsman-"): each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] != "pointsman-cli"
    }


USUAL = _pods(_rendered("production"))


def test_every_service_takes_secrets_and_volumes() -> None:
    for name, service in VALUES["services"].items():
        assert (service["envFrom"], service["volumes"], service["volumeMounts"]) == ([], [], []), name
    assert VALUES["bundle"].keys() == VALUES["services"]["scheduler"].keys() - {"enabled"} | {"services", "beside"}


def test_the_example_changes_the_services_that_it_names_and_no_other_object(template: Template) -> None:
    usual = template()
    changed = [each for each in template(EXAMPLE) if each not in usual]
    assert set(_pods(changed)) == set(EXAMPLE["services"])
    assert len(changed) == len(EXAMPLE["services"])


@pytest.mark.parametrize("service", sorted(EXAMPLE["services"]))
def test_objects_named_in_the_values_come_beside_the_existing_ones(service: str, template: Template) -> None:
    given = EXAMPLE["services"][service]
    pod, usual = _pods(template(EXAMPLE))[service], USUAL[service]
    [container], [before] = pod["containers"], usual["containers"]
    assert pod["volumes"] == [*usual["volumes"], *given["volumes"]]
    assert container["volumeMounts"] == [*before["volumeMounts"], *given["volumeMounts"]]
    assert container["envFrom"] == [*before["envFrom"], *given.get("envFrom", [])]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_the_example_has_the_certificate_that_the_adapter_reads(template: Template) -> None:
    [container] = _pods(template(EXAMPLE))["epp-adapter"]["containers"]
    [mount] = EXAMPLE["services"]["epp-adapter"]["volumeMounts"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["POINTSMAN_TLS_CERT"] == f"{mount['mountPath']}/tls.crt"
    assert environment["POINTSMAN_TLS_KEY"] == f"{mount['mountPath']}/tls.key"


def test_a_comment_that_names_the_command_for_logins_names_its_folder() -> None:
    folders = [
        folder
        for root in (CHART, ROOT / "deploy/k8s")
        for path in root.rglob("*.*")
        for folder in re.findall(r"`pointsman nats users (\S+)", path.read_text())
    ]
    assert set(folders) == {"secrets"}


@pytest.mark.parametrize("overlay", ["dev", "production", "complete", "bundle"])
def test_the_configuration_is_applied_while_others_wait_for_services_to_be_ready(overlay: str) -> None:
    """A hook that runs when everything is ready never runs: no service is ready without a configuration."""
    objects = _rendered(overlay)
    [job] = [each for each in objects if each["kind"] == "Job"]
    [stored] = [
        each
        for each in objects
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith("pointsman-configuration")
    ]
    assert not [key for key in job["metadata"].get("annotations", {}) if "hook" in key]
    # Gone by itself, it would be missed by tools that compare the cluster with the rendered objects.
    assert "ttlSecondsAfterFinished" not in job["spec"]
    # A Job can't be changed: another configuration or version is another one.
    assert re.fullmatch(r"pointsman-configuration-[0-9a-z]{10}", job["metadata"]["name"])
    assert job["metadata"]["name"] == stored["metadata"]["name"]
    assert {"configMap": {"name": stored["metadata"]["name"]}, "name": "configuration"} in (
        job["spec"]["template"]["spec"]["volumes"]
    )
    assert stored["data"]["version"] == job["metadata"]["labels"]["app.kubernetes.io/version"]


def test_another_configuration_is_another_job() -> None:
    names = {
        each["metadata"]["name"]
        for name in ("production", "complete")
        for each in _rendered(name)
        if each["kind"] == "Job"
    }
    assert len(names) == 2


def test_a_hook_checks_the_configuration_before_a_change_and_another_is_the_test(template: Template) -> None:
    """Argo CD runs the former before it synchronizes, too, and skips the latter."""
    hooks = {
        (each["kind"], each["metadata"]["name"]): each["metadata"]["annotations"]["helm.sh/hook"]
        for each in template(hooks=True)
    }
    assert hooks == {
        ("ConfigMap", "pointsman-check"): "pre-install,pre-upgrade",
        ("Job", "pointsman-check"): "pre-install,pre-upgrade",
        ("Pod", "pointsman-doctor"): "test",
    }
    [doctor] = template({"checkConfiguration": False}, hooks=True)
    assert doctor["kind"] == "Pod"


def test_the_test_has_cpu_of_its_own_on_a_busy_node(template: Template) -> None:
    """With the few of the operator's waiting pod it took longer than Helm waits."""
    [doctor] = template({"checkConfiguration": False}, hooks=True)
    [container] = doctor["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "100m"


def test_the_check_needs_nothing_that_the_chart_installs(template: Template) -> None:
    """It runs before the first of its objects is there."""
    [job] = [each for each in template({"image": {"pullSecrets": ["registry"]}}, hooks=True) if each["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    [container] = pod["containers"]
    assert "envFrom" not in container
    assert [each["configMap"]["name"] for each in pod["volumes"]] == ["pointsman-check"]
    assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    assert job["spec"]["backoffLimit"] == 0


def test_no_manifest_has_a_hook() -> None:
    """Nothing but Helm and Argo CD knows these moments."""
    folder = ROOT / "deploy/k8s"
    assert [path.name for path in folder.rglob("*.yaml") if "helm.sh/hook" in path.read_text()] == []


@pytest.mark.parametrize("inside", [[], ["frontend", "preprocessor"]])
def test_between_two_shapes_the_pods_of_both_serve_every_edge(inside: list[str], template: Template) -> None:
    """A Service that selected the pods of one shape would lose them when Helm deletes the other's."""

    def selected(values: Object, service: str) -> set[str]:
        objects = template(values)
        [selector] = [
            each["spec"]["selector"]
            for each in objects
            if (each["kind"], each["metadata"]["name"]) == ("Service", f"pointsman-{service}")
        ]
        return {
            each["metadata"]["name"]
            for each in objects
            if each["kind"] == "Deployment"
            and selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()
        }

    inside = inside or ["frontend", "epp-adapter", "scheduler"]
    assert selected({}, "frontend") == {"pointsman-frontend"}
    assert selected({"bundle": {"services": inside}}, "frontend") == {"pointsman-gateway"}
    both = {"bundle": {"services": inside, "beside": True}}
    assert selected(both, "frontend") == {"pointsman-gateway", "pointsman-frontend"}
    [policy] = [
        each["spec"]["podSelector"]["matchExpressions"][0]["values"]
        for each in template(both)
        if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "pointsman-frontend")
    ]
    assert set(policy) == selected(both, "frontend")


def test_a_rollout_needs_no_room_for_another_copy_where_there_are_several(template: Template) -> None:
    def unavailable(values: Object) -> dict[str, int]:
        return {
            each["metadata"]["name"]: each["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"]
            for each in template(values)
            if each["kind"] == "Deployment" and "strategy" in each["spec"]
        }

    assert set(unavailable({}).values()) == {1}
    assert set(unavailable({"autoscaling": {"enabled": True}}).values()) == {1}
    assert set(unavailable({"replicas": 1}).values()) == {0}


def test_without_autoscalers_every_service_has_their_least_number_of_copies(template: Template) -> None:
    """A Deployment without a number has one copy until an autoscaler looks at it."""
    objects = template({"recorder": {"enabled": True}})  # this renderer knows no metrics API
    assert not [each for each in objects if each["kind"] == "HorizontalPodAutoscaler"]
    copies = {each["metadata"]["name"]: each["spec"]["replicas"] for each in objects if each["kind"] == "Deployment"}
    assert {copies[f"pointsman-{name}"] for name, each in VALUES["services"].items() if each["enabled"]} == {2}
    scaled = template({"autoscaling": {"enabled": True, "custom": False}})
    kinds = {
        metric["type"]
        for each in scaled
        if each["kind"] == "HorizontalPodAutoscaler"
        for metric in each["spec"]["metrics"]
    }
    assert kinds == {"Resource"}


def test_another_configuration_of_the_servers_restarts_them(template: Template) -> None:
    def told(values: Object) -> str:
        [pod] = [
            each["spec"]["template"]
            for each in template(values)
            if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "pointsman-nats")
        ]
        return pod["metadata"]["annotations"]["pointsman-nats-config"]

    assert told({}) == told({"configuration": "a: 1"})
    assert told({}) != told({"nats": {"fileStore": "8GB"}})


def test_whatever_changes_the_pod_renames_the_job(template: Template) -> None:
    changes: list[Object] = [
        {"nats": {"tls": True}},
        {"nats": {"tls": False}},
        {"image": {"tag": "2"}},
        {"image": {"prefix": "registry.example/"}},
        {"configuration": "a: 1"},
    ]
    names = {each["metadata"]["name"] for change in changes for each in template(change) if each["kind"] == "Job"}
    assert len(names) == 5


def test_other_settings_are_other_pods(template: Template) -> None:
    """A pod reads them when it starts."""

    def told(values: Object) -> set[str]:
        objects = template({"recorder": {"enabled": True}, "simulatedEngines": {"enabled": True}, **values})
        kinds = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
        pods = [each for each in kinds if each["metadata"]["name"] != "pointsman-nats"]
        return {each["spec"]["template"]["metadata"]["annotations"]["pointsman-environment"] for each in pods}

    usual, changed = told({}), told({"environment": {"POINTSMAN_LOG_LEVEL": "debug"}})
    assert (len(usual), len(changed)) == (1, 1)
    assert usual != changed


def test_values_are_settings_as_they_are_meant(template: Template) -> None:
    """A pod's environment is text, and Helm writes large numbers with an exponent."""
    given = {"A": 2_000_000, "B": 0.5, "C": True, "D": ["10.0.0.0/8"], "POINTSMAN_DRAIN_TIMEOUT_S": 300}
    gone = {"POINTSMAN_HTTP_OPEN": None}
    changes = {
        "environment": {"POINTSMAN_EVENTS_MAX_BYTES": 2**30, "POINTSMAN_LOG_FORMAT": "text", **gone},
        "services": {
            "frontend": {"env": given | {"POINTSMAN_OPEN_TO_ALL": None}},
            "guard": {"enabled": True, "replicas": 0},
        },
        "image": {"pullSecrets": ["registry"]},
    }
    objects = template(changes)
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    told = found["ConfigMap", "pointsman-environment"]["data"]
    assert (told["POINTSMAN_EVENTS_MAX_BYTES"], told["POINTSMAN_LOG_FORMAT"]) == ("1073741824", "text")
    assert all(isinstance(value, str) for value in told.values())
    assert not gone.keys() & told.keys()
    pod = found["Deployment", "pointsman-frontend"]["spec"]["template"]["spec"]
    environment = [(each["name"], each["value"]) for each in pod["containers"][0]["env"]]
    assert len(dict(environment)) == len(environment), "the API server refuses the same name twice"
    assert "POINTSMAN_OPEN_TO_ALL" not in dict(environment)
    assert [dict(environment)[name] for name in given] == ["2000000", "0.5", "true", '["10.0.0.0/8"]', "300"]
    assert pod["terminationGracePeriodSeconds"] > 300
    assert found["Deployment", "pointsman-guard"]["spec"]["replicas"] == 0
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert [each["imagePullSecrets"] for each in accounts] == [[{"name": "registry"}]] * len(accounts)


def test_servers_elsewhere_may_be_reached_and_a_larger_store_may_be_filled(template: Template) -> None:
    elsewhere = template({"nats": {"enabled": False, "url": "tls://nats.example:4222"}})
    [policy] = [
        each["spec"]
        for each in elsewhere
        if each["metadata"]["name"] == "pointsman" and each["kind"] == "NetworkPolicy"
    ]
    assert {"ports": [{"port": 4222}]} in policy["egress"]
    [servers] = [
        each["data"]["nats.conf"]
        for each in template({"nats": {"storage": "50Gi", "fileStore": "45GB"}})
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "pointsman-nats"
    ]
    assert "max_file_store: 45GB" in servers


def test_a_bundle_of_the_edge_stands_beside_a_scheduler_of_its_own(template: Template) -> None:
    inside = ["frontend", "preprocessor", "profile-picker", "model-selector"]
    pods = _pods(template({"bundle": {"services": inside}}))
    assert set(pods) == {"gateway", "epp-adapter", "scheduler", "metrics-collector"}
    [container] = pods["gateway"]["containers"]
    assert container["command"] == ["pointsman-bundle", *inside]
    assert {each["name"] for each in container["ports"]} == {"metrics", "http"}
    assert "command" not in pods["scheduler"]["containers"][0]


def test_the_values_of_a_service_go_with_it_into_the_bundle(template: Template) -> None:
    """Lost, the adapter would serve without the certificate that it has alone."""
    values = deepcopy(EXAMPLE)
    values["services"]["frontend"]["env"] = {"POINTSMAN_DRAIN_TIMEOUT_S": 300, "POINTSMAN_OPEN_TO_ALL": None}
    values["bundle"] = {"services": sorted(EXAMPLE["services"]), "env": {"POINTSMAN_LOG_LEVEL": "debug"}}
    pod = _pods(template(values))["gateway"]
    [container] = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["POINTSMAN_EPP_ADAPTER_TLS_CERT"] == "/run/tls/tls.crt"
    assert environment["POINTSMAN_FRONTEND_DRAIN_TIMEOUT_S"] == "300"
    assert "POINTSMAN_FRONTEND_OPEN_TO_ALL" not in environment
    assert environment["POINTSMAN_LOG_LEVEL"] == "debug"
    assert pod["terminationGracePeriodSeconds"] > 300
    for given in EXAMPLE["services"].values():
        assert all(each in container.get("envFrom", []) for each in given.get("envFrom", []))
        assert all(each in container["volumeMounts"] for each in given["volumeMounts"])
        assert all(each in pod["volumes"] for each in given["volumes"])
    # That of the metrics-collector, which watches the cluster.
    assert pod["serviceAccountName"] == "pointsman-metrics-collector"


def test_a_service_that_no_bundle_can_have_is_refused_by_name(template: Template) -> None:
    with pytest.raises(
        RuntimeError, match=r"bundle\.services: recorder is none of batch, console, epp-adapter, frontend"
    ):
        template({"bundle": {"services": ["frontend", "recorder"]}})
