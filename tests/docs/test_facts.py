"""What documents say about messages, settings and configuration is what the code says."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.message import Message
from pointsman_contracts.subjects import STAGES, stage_subject, subject
from pointsman_core.plugins import Registry
from pointsman_model_selector.main import plugins as model_plugins
from pointsman_preprocessor.main import processors
from pointsman_profile_picker.main import pickers as profile_pickers
from pointsman_runtime.buckets import CONFIG_BUCKET, CONFIG_KEY, WORKERS_BUCKET
from pointsman_runtime.config_text import parse
from pointsman_runtime.settings import ServiceSettings
from pointsman_scheduler.plugins import registries as scheduling_registries

ROOT = Path(__file__).resolve().parents[2]
SUBJECTS = (ROOT / "docs" / "subjects.md").read_text()
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


def test_every_stage_is_documented_with_its_subject() -> None:
    for stage, address in STAGES.items():
        marks = [f"ROUTE{number}" for number in range(len(address.route))]
        built = _documented(stage_subject(stage, *marks), marks, address.route)
        assert f"| `{stage}` | `{built}` |" in SUBJECTS


def test_the_buckets_are_documented() -> None:
    assert f"| `{CONFIG_BUCKET}` | `{CONFIG_KEY}` |" in SUBJECTS
    assert f"| `{WORKERS_BUCKET}` | `<pool>.<worker>` |" in SUBJECTS


def test_every_group_of_plugins_is_documented_with_its_base_class() -> None:
    registries: list[Registry[Any]] = [
        processors(),
        profile_pickers(),
        *model_plugins(),
        *scheduling_registries(),
    ]
    text = (ROOT / "docs" / "writing-a-plugin.md").read_text()
    rows = re.findall(r"^\| `(pointsman\.[^`]+)` \|.*\| `([^`]+)` \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted((r.group, f"{r.point.__module__}.{r.point.__name__}") for r in registries)


def test_a_documented_configuration_is_right() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    [whole] = re.findall(r"<!-- config -->\n```yaml\n(.*?)```", text, re.DOTALL)
    config = parse(whole)
    for service in ("frontend", "preprocessor", "profile-picker", "model-selector", "scheduler", "metrics-collector"):
        importlib.import_module(f"pointsman_{service.replace('-', '_')}.main").check(config)


def _settings() -> set[str]:
    names: set[str] = set()
    for folder in (ROOT / "services").iterdir():
        module = importlib.import_module(f"pointsman_{folder.name.replace('-', '_')}.settings")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ServiceSettings):
                names |= {f"POINTSMAN_{field.upper()}" for field in value.model_fields}
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_documented_variable_is_a_setting(document: Path) -> None:
    named = set(re.findall(r"POINTSMAN_[A-Z_]*[A-Z]", document.read_text()))
    assert named - _settings() == set()
