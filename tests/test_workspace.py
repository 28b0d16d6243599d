"""The lists that no tool keeps: a member that one of them forgets would silently escape a check."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKSPACE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINT: dict[str, Any] = WORKSPACE["tool"]["importlinter"]
TESTING_ONLY = "pointsman-testing"


class Member(NamedTuple):
    """One distribution of the workspace."""

    folder: Path
    project: dict[str, Any]
    document: dict[str, Any]

    @property
    def path(self) -> str:
        """Folder from the root, e.g. `services/model-selector`."""
        return self.folder.relative_to(ROOT).as_posix()

    @property
    def name(self) -> str:
        """Folder name: the one name that every other name is made of."""
        return self.folder.name

    @property
    def module(self) -> str:
        """Import name."""
        return f"pointsman_{self.name.replace('-', '_')}"

    @property
    def is_service(self) -> bool:
        """Whether it is one of the services."""
        return self.folder.parent.name == "services"

    @property
    def declared(self) -> set[str]:
        """Distributions that the installed package may import, those of its extras included."""
        extras = self.project.get("optional-dependencies", {}).values()
        wanted = [*self.project.get("dependencies", []), *(one for extra in extras for one in extra)]
        return {_normal(requirement) for requirement in wanted}

    @property
    def declared_for_tests(self) -> set[str]:
        """Distributions that its tests may import besides."""
        return {_normal(requirement) for requirement in self.document.get("dependency-groups", {}).get("dev", [])}


def _normal(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _members() -> Iterator[Member]:
    for pattern in WORKSPACE["tool"]["uv"]["workspace"]["members"]:
        for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml")):
            document = tomllib.loads(file.read_text())
            yield Member(file.parent, document["project"], document)


MEMBERS = list(_members())
SERVICES = [member for member in MEMBERS if member.is_service]
each_member = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.path)
each_service = pytest.mark.parametrize("member", SERVICES, ids=lambda member: member.name)


def test_every_pyproject_belongs_to_a_member() -> None:
    # The folder `examples` stands for the work of others.
    folders = [folder for folder in ROOT.glob("[!.]*/") if folder.name != "examples"]
    found = {file.parent for folder in folders for file in folder.rglob("pyproject.toml")}
    assert found == {member.folder for member in MEMBERS}


def test_every_member_is_a_source_and_in_the_dev_group() -> None:
    """`uv sync` leaves a member out without a word when no group names it."""
    distributions = {member.project["name"] for member in MEMBERS}
    sources = WORKSPACE["tool"]["uv"]["sources"]
    assert {name for name, source in sources.items() if source == {"workspace": True}} == distributions
    group = {_normal(entry) for entry in WORKSPACE["dependency-groups"]["dev"] if isinstance(entry, str)}
    assert {entry for entry in group if entry.startswith("pointsman-")} == distributions


def test_every_kind_of_member_is_tested_typed_and_formatted() -> None:
    tops = {member.path.partition("/")[0] for member in MEMBERS}
    tools = WORKSPACE["tool"]
    assert tops <= set(tools["pytest"]["ini_options"]["testpaths"])
    assert {*tops, "tests", "benchmarks"} <= set(tools["pyright"]["include"])
    assert {pattern.partition("/")[0] for pattern in tools["ruff"]["src"]} == tops


@each_member
def test_a_member_has_one_name(member: Member) -> None:
    """Folder, distribution, module and command are forms of one name."""
    expected = f"pointsman-{member.name}"
    assert member.project["name"] == expected
    assert member.document["tool"]["uv"]["build-backend"] == {"module-name": member.module, "module-root": ""}
    packages = [path.name for path in member.folder.iterdir() if (path / "__init__.py").exists()]
    assert packages == [member.module]
    scripts = member.project.get("scripts", {})
    command = "pointsman" if member.name == "cli" else expected
    if member.is_service:
        assert scripts == {expected: f"{member.module}.main:main"}, "a service is started by its command"
    else:
        assert scripts in ({}, *({command: f"{member.module}.{place}:main"} for place in ("main", "__main__")))


def test_every_version_is_the_workspaces() -> None:
    """`scripts/set_version.py` writes them."""
    version = WORKSPACE["project"]["version"]
    assert {member.project["version"] for member in MEMBERS} == {version}
    chart = (ROOT / "deploy" / "helm" / "pointsman" / "Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (.*)$", chart, re.MULTILINE) == [version, version]


@each_member
def test_a_member_is_typed_explained_and_private(member: Member) -> None:
    assert (member.folder / member.module / "py.typed").exists()
    assert (member.folder / "README.md").read_text().startswith(f"# {member.project['name']}\n")
    assert member.project["requires-python"] == WORKSPACE["project"]["requires-python"]
    assert "Private :: Do Not Upload" in member.project["classifiers"]


@each_member
def test_bounds_live_in_the_root_alone(member: Member) -> None:
    for requirement in member.project.get("dependencies", []):
        assert re.fullmatch(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?", requirement), f"{member.path}: {requirement}"
    bounded = {_normal(entry) for entry in WORKSPACE["tool"]["uv"]["constraint-dependencies"]}
    ours = {other.project["name"] for other in MEMBERS}
    assert (member.declared | member.declared_for_tests) - ours <= bounded


@each_member
def test_folders_of_modules_are_packages_and_folders_of_tests_are_not(member: Member) -> None:
    """A folder without `__init__.py` is left out of the wheel; one with it collides with another suite's tests."""
    for folder in {path.parent for path in (member.folder / member.module).rglob("*.py")}:
        assert (folder / "__init__.py").exists(), folder
    assert not list((member.folder / "tests").rglob("__init__.py"))


def test_no_folder_of_members_is_a_package() -> None:
    """`import contracts` at the root must find nothing."""
    folders = {ROOT / "tests", *(parent for member in MEMBERS for parent in (member.folder, member.folder.parent))}
    assert not [folder for folder in folders if (folder / "__init__.py").exists()]


@each_member
def test_a_member_imports_only_what_it_declares(member: Member) -> None:
    """Faults that an image or an isolated run would find later."""
    undeclared = dict(_undeclared(member.folder / member.module, member.module, member.declared))
    assert not undeclared
    for_tests = _with_what_members_bring(member.declared | member.declared_for_tests)
    assert not dict(_undeclared(member.folder / "tests", member.module, for_tests))


@each_member
def test_only_testing_depends_on_test_tools(member: Member) -> None:
    if member.project["name"] != TESTING_ONLY:
        assert not {TESTING_ONLY, "pytest", "hypothesis", "testcontainers"} & member.declared


def test_import_rules_cover_every_member() -> None:
    modules = {member.module for member in MEMBERS}
    services = {member.module for member in SERVICES}
    rules: dict[str, list[dict[str, Any]]] = {}
    for rule in LINT["contracts"]:
        rules.setdefault(rule["type"], []).append(rule)
    assert set(LINT["root_packages"]) == modules
    assert set(rules["independence"][0]["modules"]) == services
    layers = {name.strip() for layer in rules["layers"][0]["layers"] for name in layer.split("|")}
    assert layers == modules
    # A module in no layer could be imported from anywhere.
    inside_services = [rule for rule in rules["layers"] if set(rule.get("containers", ())) & services]
    assert all(rule["exhaustive"] for rule in inside_services)
    assert sorted(name for rule in inside_services for name in rule["containers"]) == sorted(services)
    pure = set(rules["forbidden"][0]["source_modules"])
    inside = {
        f"{member.module}.{part}"
        for member in SERVICES
        for part in ("domain", "plugins")
        if (member.folder / member.module / part).is_dir()
    }
    assert {"pointsman_core", "pointsman_contracts"} | inside <= pure


@each_service
def test_a_service_tells_its_own_name_to_the_bus(member: Member) -> None:
    """The name given to the runtime is the service's name in logs, presence and its queue group."""
    named = {
        call.args[0].value
        for file in (member.folder / member.module).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and _called(call) == "Program"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }
    assert named == {member.name}


def test_outside_plugins_are_offered_by_groups_of_existing_services() -> None:
    groups = {group for group in entry_points().groups if group.startswith("pointsman.")} - {"pointsman.services"}
    assert {group.split(".")[1] for group in groups} <= {member.name for member in SERVICES}


def test_every_service_can_be_bundled() -> None:
    assert {found.name for found in entry_points(group="pointsman.services")} == {member.name for member in SERVICES}


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _with_what_members_bring(distributions: set[str]) -> set[str]:
    found = set(distributions)
    while more := {name for member in MEMBERS if member.project["name"] in found for name in member.declared} - found:
        found |= more
    return found


def _undeclared(folder: Path, own: str, declared: set[str]) -> Iterator[tuple[str, str]]:
    """Third-party modules that the files of `folder` import without a declaration, and one file that does."""
    owners = _owners()
    for file in sorted(folder.rglob("*.py")):
        for module in _imported(file):
            if module == own or module in sys.stdlib_module_names:
                continue
            if not {_normal(owner) for owner in owners.get(module, ())} & declared:
                yield module, file.relative_to(ROOT).as_posix()


@cache
def _owners() -> dict[str, list[str]]:
    """Distributions of each importable module."""
    # An editable installation records no top-level module.
    return {**packages_distributions(), **{member.module: [member.project["name"]] for member in MEMBERS}}


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
