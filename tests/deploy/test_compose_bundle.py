"""docker-compose.bundle.yml over docker-compose.yml: one container in place of those of the services in it."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from pointsman_bundle.main import GROUP, assembled
from pointsman_contracts.parties import VIEWERS
from pointsman_hosting.program import Program
from pointsman_runtime.configuring.settings import ServiceSettings

ROOT = Path(__file__).resolve().parents[2]
Object = dict[str, Any]
USUAL: dict[str, Object] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CHANGES: dict[str, Object] = yaml.safe_load((ROOT / "docker-compose.bundle.yml").read_text())["services"]
BUNDLE = "gateway"
INSIDE: list[str] = CHANGES[BUNDLE]["command"][1:]


def _over(before: Object, change: Object) -> Object:
    """Merge like Compose's `extends`: mappings are merged, other values replaced."""
    return before | {
        key: _over(cast("Object", before[key]), cast("Object", value))
        if isinstance(value, dict) and isinstance(before.get(key), dict)
        else value
        for key, value in change.items()
    }


def _gateway() -> Object:
    extended = CHANGES[BUNDLE]["extends"]
    assert extended["file"] == "docker-compose.yml"
    return _over(USUAL[extended["service"]], CHANGES[BUNDLE])


def test_the_file_follows_the_compose_specification() -> None:
    check = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, str(ROOT / "docker-compose.bundle.yml")], check=True, capture_output=True)


def test_each_service_of_the_bundle_has_no_container_and_every_other_has_its_own() -> None:
    switched_off = {name for name, change in CHANGES.items() if change.get("profiles") == ["separate"]}
    assert set(CHANGES) - switched_off == {BUNDLE}
    assert switched_off == set(INSIDE)
    always = {
        name
        for name, service in USUAL.items()
        # A console takes nothing from requests in a process of its own.
        if "profiles" not in service and name not in VIEWERS and (ROOT / "services" / name / "pyproject.toml").is_file()
    }
    assert switched_off == always


def test_the_bundle_takes_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [key for key in os.environ if key.startswith("POINTSMAN_")]:
        monkeypatch.delenv(variable)
    environment: dict[str, str] = _gateway()["environment"]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, "secret" if variable == "POINTSMAN_NATS_PASSWORD" else value)
    installed = {found.name: found for found in entry_points(group=GROUP)}
    programs = [cast("Program[ServiceSettings]", installed[name].load()) for name in INSIDE]
    settings, members = assembled(programs)
    assert settings.nats_servers == ["nats://nats:4222"]
    assert [member.name for member in members] == INSIDE
    known = {f"POINTSMAN_{field.upper()}" for program in programs for field in program.settings.model_fields}
    assert set(environment) <= known


def test_the_bundle_is_reached_and_keeps_what_the_services_of_it_do() -> None:
    gateway = _gateway()
    assert gateway["ports"] == USUAL["frontend"]["ports"]
    assert gateway["volumes"] == USUAL["recorder"]["volumes"]
    for name in INSIDE:
        assert USUAL[name]["environment"].items() <= gateway["environment"].items(), name
        assert set(USUAL[name].get("volumes", [])) <= set(gateway["volumes"]), name


def test_the_bundle_is_as_restricted_as_its_services_and_has_the_time_to_drain() -> None:
    gateway = _gateway()
    for key in ("read_only", "cap_drop", "security_opt", "restart", "healthcheck", "depends_on"):
        assert gateway[key] == USUAL["frontend"][key], key
    edges_and_others = 2 * cast("float", ServiceSettings.model_fields["drain_timeout_s"].default)
    assert float(gateway["stop_grace_period"].removesuffix("s")) > edges_and_others


def test_the_image_is_that_of_the_command() -> None:
    gateway = _gateway()
    assert gateway["build"] == USUAL["frontend"]["build"] | {"args": {"SERVICE": "bundle"}}
    assert gateway["image"] == "pointsman/bundle"
    assert gateway["command"][0] == "pointsman-bundle"


def test_prometheus_scrapes_the_bundle() -> None:
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [found] = [job for job in document["scrape_configs"] if job["job_name"] == "pointsman"]
    assert BUNDLE in found["dns_sd_configs"][0]["names"]
