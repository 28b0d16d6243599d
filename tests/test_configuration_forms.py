"""The file is one way to write a configuration down; services run what it means."""

import importlib
import json
from pathlib import Path
from typing import Final

import pytest
import yaml

from pointsman_core.config import Config, ConfigError, load
from pointsman_model_selector.configuration import check as check_selectors
from pointsman_model_selector.configuration import plugins as model_plugins
from pointsman_plugins.picking import PoolStates
from pointsman_profile_picker.configuration import check as check_pickers
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.configuration import pickers as profile_pickers
from pointsman_runtime.configuring.config_text import parse
from pointsman_scheduler.configuration import check as check_scheduling
from pointsman_scheduler.plugins import registries as scheduling_registries
from pointsman_testing import builders

REFERENCE: Final = (Path(__file__).resolve().parent.parent / "examples/reference-profiles.yaml").read_text()
SERVICES: Final = ("frontend", "preprocessor", "profile-picker", "model-selector", "scheduler", "metrics-collector")


@pytest.mark.requirement("S0-77")
def test_the_pipeline_is_the_same_whatever_form_its_configuration_had() -> None:
    """YAML with comments, JSON, a document built by a program, and sections built one by one."""
    document = yaml.safe_load(REFERENCE)
    plain = load(document)
    sections = {name: getattr(plain, name) for name in Config.model_fields}
    forms = [
        plain,
        parse(REFERENCE),
        parse(json.dumps(document)),
        Config.model_construct(**sections),
        Config.model_validate(plain.model_dump(by_alias=True)),
    ]
    journey = builders.journey("profile-picker", model="auto")
    for form in forms:
        for service in SERVICES:
            importlib.import_module(f"pointsman_{service.replace('-', '_')}.configuration").check(form)
        assert form.policy_hash() == plain.policy_hash()
        assert compile_routing(form).pick_profile(journey, PoolStates(), 0.0) == compile_routing(plain).pick_profile(
            journey, PoolStates(), 0.0
        )


@pytest.mark.requirement("S0-57")
def test_a_type_name_means_the_plugin_of_the_place_where_it_stands() -> None:
    """`healthy`, `max-score` and `single` exist at several extension points, and each place gets its own."""
    config = load(
        {
            "pools": {"p": {"models": ["m"]}},
            "profile-picker": {"use": "single", "profile": "standard"},
            "profiles": {"standard": {"request": ["model-selector/s", "scheduler"]}},
            "selectors": {"s": {"filters": ["healthy"], "picker": "max-score", "choose": "single"}},
            "scheduling": {"default": {"handler": "single", "filters": ["healthy"], "picker": "max-score"}},
        }
    )
    for check in (check_pickers, check_selectors, check_scheduling):
        check(config)
    registries = (profile_pickers(), *model_plugins(), *scheduling_registries())
    for name in ("single", "healthy", "max-score"):
        points = {registry.kind: registry.types[name] for registry in registries if name in registry.types}
        assert len(points) >= 2
        assert len(set(points.values())) == len(points)
        for registry in registries:
            if name in registry.types:
                assert issubclass(registry.types[name], registry.point)


@pytest.mark.requirement("S0-57")
@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        (
            "selectors",
            {"s": {"filters": ["cost"]}},
            r"selectors\.s\.rankings\.default\.filters\.0.*unknown model filter type 'cost'",
        ),
        (
            "selectors",
            {"s": {"picker": "cost"}},
            r"selectors\.s\.rankings\.default\.picker.*unknown model picker type 'cost'",
        ),
        (
            "scheduling",
            {"default": {"scorers": ["healthy"]}},
            r"scheduling\.default.*unknown scorer type 'healthy'",
        ),
    ],
)
def test_a_plugin_at_the_wrong_place_is_refused_with_the_ones_that_fit(section: str, value: object, words: str) -> None:
    config = load({"pools": {"p": {"models": ["m"]}}, section: value})
    with pytest.raises(ConfigError, match=words):
        (check_selectors if section == "selectors" else check_scheduling)(config)
