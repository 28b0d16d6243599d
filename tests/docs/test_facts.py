"""Documents agree with the code about messages, settings and configuration."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pointsman_bundle.settings import BundleSettings
from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.message import Message
from pointsman_contracts.parties import AGENT, PARTIES, SHARED_LOGINS, WATCHERS
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import stage_subject, subject
from pointsman_core.config import Config, SchedulingPolicy
from pointsman_core.fingerprint import WITHOUT_EFFECT
from pointsman_edge.answer_plugins import response_processors
from pointsman_guard.configuration import plugins as detectors
from pointsman_model_selector.configuration import plugins as model_plugins
from pointsman_plugins.picking import ProfilePicker
from pointsman_plugins.profile_chains import request_processors
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.points import ProfileHandler
from pointsman_preprocessor.configuration import processors
from pointsman_profile_picker.configuration import pickers as profile_pickers
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY, WORKERS_BUCKET
from pointsman_scheduler.plugins import registries as scheduling_registries

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = (ROOT / "docs" / "subjects.md").read_text()
SERVICES = ("frontend", "preprocessor", "profile-picker", "model-selector", "guard", "scheduler", "metrics-collector")
DOCUMENTS = [ROOT / "README.md", ROOT / "docker-compose.yml", *sorted((ROOT / "docs").glob("*.md"))]


def _documented(built: str, marks: list[str], names: tuple[str, ...]) -> str:
    """A built subject with `<name>` for each route token, which no subject may contain and so is put in afterwards."""
    for mark, name in zip(marks, names, strict=True):
        built = built.replace(mark, f"<{name}>")
    return built


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.address.type_id)
def test_every_message_is_documented_with_its_subject(message: type[Message]) -> None:
    address = message.address
    assert f"`{address.type_id}`" in SUBJECTS
    if address.kind in ("evt", "sig", "ctl") and address.route != ("inbox",):
        row = next(line for line in SUBJECTS.splitlines() if line.startswith(f"| `{address.type_id}`"))
        marks = [f"ROUTE{number}" for number in range(len(address.route))]
        assert f"| `{_documented(subject(message, *marks), marks, address.route)}` |" in row


def test_no_message_is_documented_that_does_not_exist() -> None:
    named = set(re.findall(r"`([a-z-]+\.[a-z-]+\.v\d+)`", SUBJECTS))
    assert named == {message.address.type_id for message in MESSAGES}


def test_every_key_of_the_configuration_is_described() -> None:
    reference = (ROOT / "docs" / "configuration-reference.md").read_text()
    assert [line for line in reference.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_every_stage_is_documented_with_its_subject() -> None:
    for stage, address in STAGES.items():
        marks = [f"ROUTE{number}" for number in range(len(address.route))]
        built = _documented(stage_subject(stage, *marks), marks, address.route)
        assert f"| `{stage}` | `{built}` |" in SUBJECTS


def test_every_field_that_parts_no_cached_answers_is_documented() -> None:
    document = (ROOT / "docs" / "semantic-cache.md").read_text()
    listed = document.partition("don't count (")[2].partition(")")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == WITHOUT_EFFECT - {"model"}


def test_the_buckets_are_documented() -> None:
    assert f"| `{CONFIG_BUCKET}` | `{CONFIG_KEY}` |" in SUBJECTS
    assert f"| `{WORKERS_BUCKET}` | `<pool>.<worker>` |" in SUBJECTS


def test_every_group_of_plugins_is_documented_with_its_base_class() -> None:
    registries: list[Registry[Any]] = [
        processors(),
        profile_pickers(),
        *model_plugins(),
        detectors(),
        *scheduling_registries(),
        response_processors(),
        request_processors(),
    ]
    text = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    rows = re.findall(r"^\| `(pointsman\.[^`]+)` \|.*\| (\w+) \| `([^`]+)` \|$", text, re.MULTILINE)
    points = [registry.point for registry in registries]
    assert sorted(rows) == sorted((p.group, p.stability, f"{p.__module__}.{p.__name__}") for p in points)


def test_a_documented_configuration_is_right() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    [whole] = re.findall(r"<!-- config -->\n```yaml\n(.*?)```", text, re.DOTALL)
    config = parse(whole)
    for service in SERVICES:
        importlib.import_module(f"pointsman_{service.replace('-', '_')}.configuration").check(config)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: file.name)
def test_a_configuration_that_is_an_example_is_right_for_every_service(file: Path) -> None:
    config = parse(file.read_text())
    for service in SERVICES:
        importlib.import_module(f"pointsman_{service.replace('-', '_')}.configuration").check(config)


@pytest.mark.requirement("S0-81")
def test_the_two_choices_of_a_profile_are_distinguished_as_the_code_has_them() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text.partition("## Two choices of a profile")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    told = {name: (picker, handler) for name, picker, handler in rows}
    assert told[""] == ("profile picker", "profile handler")
    picker, handler = told["runs"]
    for word, point in ((picker, ProfilePicker), (handler, ProfileHandler)):
        for method in re.findall(r"`(\w+)`", word):
            assert callable(getattr(point, method))
    assert "process_results" in handler
    assert not hasattr(ProfilePicker, "process_results")
    # The handler sees the results so far, the picker has none to see.
    assert "results" in inspect.signature(ProfileHandler.pick).parameters
    assert "results" not in inspect.signature(ProfilePicker.pick).parameters
    assert str(Config.model_fields["profile_picker"].alias) in told["configured in"][0]
    assert {"handler", "profiles"} <= set(SchedulingPolicy.model_fields)


OF_EVERY_SERVICE = ("service.presence.v1", "request.scheduled.v1", "event.lost.v1")
"""The runtime's metrics of each stage; only the scheduler has metrics of decisions."""


def _names(readme: str, message: type[Message]) -> bool:
    """Whether a README names a message, as a class or by its subject: `{a,b}` in one stands for both."""
    type_id = message.address.type_id
    spread = [
        line.replace(f"{{{braced}}}", each)
        for line in readme.splitlines()
        for braced in re.findall(r"\{([a-z,-]+)\}", line)
        for each in braced.split(",")
    ]
    return any(f"`{message.__name__}`" in line or type_id in line for line in (*readme.splitlines(), *spread))


@pytest.mark.requirement("S1-7", "S1-9")
@pytest.mark.parametrize("service", [*SHARED_LOGINS, AGENT])
def test_every_service_documents_its_inputs_and_outputs(service: str) -> None:
    text = (ROOT / "services" / service / "README.md").read_text()
    told = set(re.findall(r"^(?:\| |## )(\w+)(?: \||$)", text.lower(), re.MULTILINE))
    assert {"consumes", "publishes"} <= told
    unnamed: set[str] = set()
    for message in MESSAGES:
        address, parties = message.address, PARTIES[message.address.type_id]
        answers = address.route == ("inbox",)  # a document that names the request may omit its response
        all_events = address.kind == "evt" and service in WATCHERS
        if answers or all_events or address.type_id in OF_EVERY_SERVICE:
            continue
        if service in (*parties.senders, *parties.readers) and not _names(text, message):
            unnamed.add(message.__name__)
    assert not unnamed


def _settings() -> set[str]:
    """Variables that a process may be given; those of one service in a bundle have its name in them."""
    names = {f"POINTSMAN_{field.upper()}" for field in BundleSettings.model_fields}
    for folder in (ROOT / "services").iterdir():
        module = importlib.import_module(f"pointsman_{folder.name.replace('-', '_')}.settings")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ServiceSettings):
                own = f"{folder.name.upper().replace('-', '_')}_"
                names |= {f"POINTSMAN_{part}{field.upper()}" for field in value.model_fields for part in ("", own)}
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_documented_variable_is_a_setting(document: Path) -> None:
    named = set(re.findall(r"POINTSMAN_[A-Z0-9_]*[A-Z0-9]", document.read_text()))
    assert named - _settings() == set()


PLUGINS = (ROOT / "docs" / "writing-a-plugin.md").read_text()
POINTS = dict(re.findall(r"\| `(pointsman\.[\w.-]+)` \|[^|]*\|[^|]*\| `([\w.]+)` \|", PLUGINS))


def _signature(method: Any) -> str:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.body = [ast.Pass()]
    line = ast.unparse(definition).removesuffix(":\n    pass").replace("'", "")
    return f"{line}  # must" if getattr(method, "__isabstractmethod__", False) else line


@pytest.mark.parametrize("group", POINTS)
def test_the_methods_of_a_plugin_of_each_group_are_documented_with_their_signatures(group: str) -> None:
    module, _, name = POINTS[group].rpartition(".")
    point: type[object] = getattr(importlib.import_module(module), name)
    written = re.search(rf"^class {name}:  # {re.escape(group)}\n((?:    .*\n)+)", PLUGINS, re.MULTILINE)
    assert written is not None
    methods = [each for key, each in vars(point).items() if inspect.isfunction(each) and not key.startswith("_")]
    assert {line.strip() for line in written[1].splitlines()} == {_signature(method) for method in methods}


def test_every_group_of_plugins_that_a_service_reads_is_documented() -> None:
    sources = (ROOT / "shared" / "plugins").glob("pointsman_*/**/*.py")
    read = {group for source in sources for group in re.findall(r'"(pointsman\.\w+\.[\w-]+)"', source.read_text())}
    assert {group for group in read if group.split(".")[1] in {name.split(".")[1] for name in POINTS}} <= POINTS.keys()
