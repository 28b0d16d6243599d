"""The Gateway API objects of the overlay `complete`, and of the example beside it, do what their comments say."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pointsman_core.config import Config
from pointsman_epp_adapter.adapters.body_routing import MODEL
from pointsman_epp_adapter.settings import EppAdapterSettings
from pointsman_metrics_collector.configuration import check
from pointsman_metrics_collector.domain.kubernetes.collections import RULE_GROUPS
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.configuring.settings import load

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
Template = Callable[..., list[Object]]


def _objects(path: str) -> list[Object]:
    return [each for each in yaml.load_all((ROOT / path).read_text(), yaml.CSafeLoader) if each]


COMPLETE = _objects("deploy/k8s/overlays/complete/pointsman.yaml")
EXAMPLE = _objects("deploy/k8s/examples/body-based-routing.yaml")
GROUPS = {"llm-d": "llm-d.ai", "x-k8s": "inference.networking.x-k8s.io"}
"""Of the kind InferenceObjective."""
COMPLETE_VALUES: Object = yaml.safe_load((ROOT / "deploy/helm/pointsman/values-complete.yaml").read_text())
DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()


def _one(objects: list[Object], kind: str, name: str = "") -> Object:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"].startswith(name)]
    return found


def _configuration() -> Config:
    return parse(_one(COMPLETE, "ConfigMap", "pointsman-configuration")["data"]["pointsman.yaml"])


def _environment(deployment: Object) -> dict[str, str]:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def test_the_pool_of_the_objective_is_one_whose_objectives_are_read() -> None:
    config = _configuration()
    check(config)
    pool = _one(COMPLETE, "InferencePool")["metadata"]
    read = {each.kubernetes.inference_pool for each in config.pools.values() if each.kubernetes}
    assert read == {pool["name"]}
    assert {each["backendRefs"][0]["name"] for each in _one(COMPLETE, "HTTPRoute")["spec"]["rules"]} == read


def test_no_overlay_needs_a_kind_that_only_some_versions_of_the_extension_have() -> None:
    """InferenceObjective moved from one group to the other, and a cluster refuses what it has no definition of."""
    assert not [each for each in COMPLETE if each["kind"] in ("InferenceObjective", "InferenceModelRewrite")]


def test_an_objective_can_be_had_for_either_group_and_both_are_watched(template: Template) -> None:
    objectives = {
        name: _one(
            template({**COMPLETE_VALUES, "gateway": {"enabled": True, "objectives": group}}), "InferenceObjective"
        )
        for name, group in GROUPS.items()
    }
    groups = {name: each["apiVersion"] for name, each in objectives.items()}
    assert set(groups.values()) == set(RULE_GROUPS)
    one, other = [Object({**each, "apiVersion": ""}) for each in objectives.values()]
    assert one == other
    assert one["spec"]["poolRef"]["name"] == _one(COMPLETE, "InferencePool")["metadata"]["name"]
    schemas = json.loads((ROOT / "tests/deploy/schemas/objects.json").read_text())
    definition = schemas["kinds"]["inference.networking.x-k8s.io/v1alpha2 InferenceObjective"].replace("/", "~1")
    check = jsonschema.Draft7Validator({"$ref": f"#/definitions/{definition}", "definitions": schemas["definitions"]})
    # The kind looks alike in both groups.
    assert list(check.iter_errors({**one, "apiVersion": groups["x-k8s"]})) == []  # pyright: ignore[reportUnknownMemberType] - an overload of it is untyped
    [allowed] = [
        rule["apiGroups"] for rule in _one(COMPLETE, "Role")["rules"] if "inferenceobjectives" in rule["resources"]
    ]
    assert {f"{group}/v1alpha2" for group in allowed} == set(RULE_GROUPS)


def test_a_bundle_behind_a_gateway_trusts_the_same_clients_as_the_adapter_alone(template: Template) -> None:
    inside = ["frontend", "epp-adapter", "preprocessor", "profile-picker", "model-selector", "scheduler"]
    rendered = template({**COMPLETE_VALUES, "bundle": {"services": inside}})
    alone = _environment(_one(COMPLETE, "Deployment", "pointsman-epp-adapter"))
    bundle = _environment(_one(rendered, "Deployment", "pointsman-gateway"))
    assert bundle["POINTSMAN_EPP_ADAPTER_TRUSTED_PROXIES"] == alone["POINTSMAN_TRUSTED_PROXIES"]
    assert not [each for each in rendered if each["metadata"]["name"] == "pointsman-scheduler"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl isn't here")
def test_an_overlay_of_an_operator_patches_a_generated_one(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy/k8s", tmp_path / "k8s")
    folder = tmp_path / "k8s/overlays/mine"
    folder.mkdir()
    patch = "kind: any\nmetadata: {name: any}\nspec: {endpointPickerRef: {failureMode: FailOpen}}\n"
    overlay = {"resources": ["../complete"], "patches": [{"target": {"kind": "InferencePool"}, "patch": patch}]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    ran = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True)
    rendered = [each for each in yaml.load_all(ran.stdout, yaml.CSafeLoader) if each]
    assert _one(rendered, "InferencePool")["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    assert len(rendered) == len(COMPLETE)


def test_a_trusted_peer_may_name_an_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _environment(_one(COMPLETE, "Deployment", "pointsman-epp-adapter")).items():
        monkeypatch.setenv(name, value)
    settings = load(EppAdapterSettings)
    assert settings.trusted_proxies
    assert all(network.is_private for network in settings.trusted_proxies)
    assert not settings.trust_unnamed


@pytest.mark.requirement("S1-21")
def test_a_route_by_the_model_of_the_body_is_what_the_documents_show_first() -> None:
    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)[0])
    assert shown == _one(EXAMPLE, "HTTPRoute")
    assert DOCUMENT.index("## Routes by a request's model") < DOCUMENT.index("## Objectives and rewrites")


@pytest.mark.requirement("S1-21")
def test_the_example_routes_every_model_of_a_pool_by_the_header_that_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routed: dict[str, set[str]] = {}
    for rule in _one(EXAMPLE, "HTTPRoute")["spec"]["rules"]:
        [backend] = rule["backendRefs"]
        for match in rule["matches"]:
            [header] = match["headers"]
            assert header["name"].lower() == MODEL.decode()
            routed.setdefault(backend["name"], set()).add(header["value"])
    [(name, pool)] = _configuration().pools.items()
    assert routed[name] == set(pool.models)
    assert len(routed) > 1, "one pool needs no such route"
    for variable, value in _environment(_one(EXAMPLE, "Deployment")).items():
        monkeypatch.setenv(variable, value)
    settings = load(EppAdapterSettings)
    assert settings.mode == "body-based-routing"
    [port] = _one(EXAMPLE, "Service")["spec"]["ports"]
    assert port["port"] == settings.port


def test_the_adapter_of_the_example_is_one_of_the_services_and_restricted_as_they_are() -> None:
    example, usual = (
        _one(objects, "Deployment", name)["spec"]["template"]
        for objects, name in ((EXAMPLE, ""), (COMPLETE, "pointsman-epp-adapter"))
    )
    # The last one is for the pods behind the Service of the endpoint picker.
    name = {"app.kubernetes.io/name", "app.kubernetes.io/version", "pointsman-epp-adapter"}
    assert "pointsman-epp-adapter" not in example["metadata"]["labels"]
    assert {key: value for key, value in usual["metadata"]["labels"].items() if key not in name}.items() <= example[
        "metadata"
    ]["labels"].items()
    for key in ("securityContext", "serviceAccountName", "volumes"):
        assert example["spec"][key] == usual["spec"][key]
    [one], [other] = example["spec"]["containers"], usual["spec"]["containers"]
    for key in ("image", "envFrom", "ports", "securityContext", "volumeMounts", "lifecycle"):
        assert one[key] == other[key]


def test_every_object_of_the_example_follows_its_schema() -> None:
    schemas = json.loads((ROOT / "tests/deploy/schemas/objects.json").read_text())
    for each in EXAMPLE:
        definition = schemas["kinds"][f"{each['apiVersion']} {each['kind']}"].replace("/", "~1")
        check = jsonschema.Draft7Validator(
            {"$ref": f"#/definitions/{definition}", "definitions": schemas["definitions"]}
        )
        assert list(check.iter_errors(each)) == [], each["kind"]  # pyright: ignore[reportUnknownMemberType] - an overload of it is untyped
