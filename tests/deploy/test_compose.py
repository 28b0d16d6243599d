"""docker-compose.yml without a container engine: its schema, and everything in it that this repository can check."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from pointsman_core.config import Config
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.configuring.settings import ServiceSettings, load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {name: str(service["build"]["args"]["SERVICE"]) for name, service in SERVICES.items() if "build" in service}
OURS = {name: member for name, member in BUILT.items() if (ROOT / "services" / member).is_dir()}


def _environment(name: str) -> dict[str, str]:
    """As the container sees it, with a password from `.env`."""
    found: dict[str, object] = SERVICES[name].get("environment", {})
    return {key: re.sub(r"\$\{\w+:\?[^}]*\}", "from-dot-env", str(value)) for key, value in found.items()}


def test_the_file_follows_the_compose_specification() -> None:
    """By the specification's own JSON Schema, as check-jsonschema ships it."""
    check = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, str(ROOT / "docker-compose.yml")], check=True, capture_output=True)


def test_every_service_of_the_project_runs() -> None:
    folders = {path.name for path in (ROOT / "services").iterdir() if (path / "pyproject.toml").exists()}
    assert set(OURS.values()) == folders
    assert list(BUILT.values()).count("simulator") == 2


@pytest.mark.parametrize("name", sorted(BUILT))
def test_an_image_is_built_from_a_member_by_the_one_dockerfile(name: str) -> None:
    build = SERVICES[name]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).is_file()
    assert [top for top in ("services", "tools") if (ROOT / top / BUILT[name] / "pyproject.toml").is_file()]
    assert SERVICES[name]["image"] == f"pointsman/{BUILT[name]}"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_takes_its_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings are strict: a misspelt or forbidden one would end the container at its start."""
    for variable in [key for key in os.environ if key.startswith("POINTSMAN_")]:
        monkeypatch.delenv(variable)
    environment = _environment(name)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    module = importlib.import_module(f"pointsman_{OURS[name].replace('-', '_')}.settings")
    [settings] = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    }
    loaded = load(settings)
    assert loaded.nats_servers == ["nats://nats:4222"]
    known = {f"POINTSMAN_{field.upper()}" for field in settings.model_fields}
    assert set(environment) <= known


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_mounted_file_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, _, target = str(volume).partition(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name} mounts {source}"
            assert target.endswith(":ro"), f"{name} may write to {source}"
        else:
            assert source in COMPOSE["volumes"]


def test_no_other_host_reaches_anything() -> None:
    ports = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_engines_serve_what_the_pool_of_their_agents_wants() -> None:
    config: Config = parse((ROOT / "pointsman.yaml").read_text())
    agents = [name for name, member in OURS.items() if member == "worker-agent"]
    for name in agents:
        environment = _environment(name)
        engine = environment["POINTSMAN_ENGINE_URL"].removeprefix("http://").removesuffix(":8000")
        command = cast("list[str]", SERVICES[engine]["command"])
        served = {part.partition("=")[2] for part in command if part.startswith(("--model=", "--lora="))}
        assert served == set(config.pools[environment["POINTSMAN_POOL"]].models)


def test_services_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for needed in service.get("depends_on", []):
            assert needed in SERVICES, f"{name} waits for {needed}"
    assert all("configuration" in SERVICES[name]["depends_on"] for name in OURS)


def test_however_slow_the_host_is_nothing_is_given_up_because_something_else_is_late() -> None:
    """Compose starts a service never, where one that it depends on wasn't healthy in time or ended with an error."""
    for name, service in SERVICES.items():
        needed: dict[str, dict[str, str]] | list[str] = service.get("depends_on", {})
        conditions = {each["condition"] for each in needed.values()} if isinstance(needed, dict) else set[str]()
        assert conditions <= {"service_started"}, name
        assert service["restart"] == ("on-failure:30" if name == "configuration" else "unless-stopped"), name
        if "healthcheck" in service:
            assert service["healthcheck"]["start_period"] == "5m", name


def test_a_file_with_the_password_is_none_of_the_repositorys() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_prometheus_scrapes_every_service() -> None:
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = {
        str(target)
        for job in document["scrape_configs"]
        for group in job.get("static_configs", job.get("dns_sd_configs", []))
        for target in group.get("targets", group.get("names", []))
    }
    for name in OURS:
        port = _environment(name)["POINTSMAN_HTTP_PORT"]
        assert targets & {f"{name}:{port}", name}, f"{name}:{port} is not among {sorted(targets)}"
