"""Every service of the table has its line in each list that can't be derived from it."""

import ast
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman_contracts.services import SERVICES, Service

ROOT = Path(__file__).resolve().parents[2]
WORKSPACE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINT: list[dict[str, Any]] = WORKSPACE["tool"]["importlinter"]["contracts"]
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "deploy/helm/pointsman/values.yaml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def _dependencies(member: str) -> set[str]:
    return set(tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]["dependencies"])


def _missing(service: Service) -> list[str]:
    """Each line that the service lacks, with its file."""
    distribution = f"pointsman-{service.name}"
    module = distribution.replace("-", "_")
    named = {rule["name"]: rule for rule in LINT}
    independent = named["A service never imports another service; they talk through contracts"]["modules"]
    built = {each["build"]["args"]["SERVICE"] for each in COMPOSE["services"].values() if "build" in each}
    lists: dict[str, bool] = {
        f"services/{service.name}/pyproject.toml": (ROOT / "services" / service.name / "pyproject.toml").is_file(),
        f"pyproject.toml: {distribution} in dependency-groups.dev": distribution
        in WORKSPACE["dependency-groups"]["dev"],
        f"pyproject.toml: {distribution} in tool.uv.sources": distribution in WORKSPACE["tool"]["uv"]["sources"],
        f"pyproject.toml: {module} in the import rules": module in independent,
        f"tools/bundle/pyproject.toml: {distribution}": distribution in _dependencies("tools/bundle"),
        f"docker-compose.yml: a service with SERVICE: {service.name}": service.name in built,
    }
    if service.kind != "agent":
        chart = {*VALUES["services"], "recorder"}
        lists[f"deploy/helm/pointsman/values.yaml: services.{service.name}"] = service.name in chart
    return [line for line, there in lists.items() if not there]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_a_service_of_the_table_is_in_every_list(service: Service) -> None:
    assert _missing(service) == []


def test_a_service_that_is_nowhere_is_named_with_each_missing_line() -> None:
    missing = _missing(Service("translator", "stage", verb="translate"))
    assert len(missing) == 7
    assert all("translator" in line for line in missing)


def test_every_service_that_can_be_started_is_in_the_table() -> None:
    assert {found.name for found in entry_points(group="pointsman.services")} == {each.name for each in SERVICES}


def test_a_service_that_stacks_leave_out_is_off_in_the_chart() -> None:
    optional = {service.name for service in SERVICES if service.optional}
    assert {name for name, service in VALUES["services"].items() if not service["enabled"]} == optional


def test_no_other_file_of_the_product_lists_the_services() -> None:
    """A tuple, list, set or mapping of three of them follows from the table instead."""
    names = {service.name for service in SERVICES}
    found: set[str] = set()
    for top in ("contracts", "shared", "services", "tools"):
        for path in (ROOT / top).rglob("pointsman_*/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                        inside = elements
                    case ast.Dict(keys=keys):
                        inside = keys
                    case _:
                        continue
                if len(names & {each.value for each in inside if isinstance(each, ast.Constant)}) >= 3:
                    found.add(path.relative_to(ROOT).as_posix())
    assert not found
