"""Every plugin and each of its parameters is explained."""

from pathlib import Path

import pytest

from pointsman_contracts.descriptions import descriptions
from pointsman_scheduler.plugins import registries

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.requirement("S2-25")
def test_the_readme_lists_every_extension_point_and_plugin() -> None:
    text = README.read_text(encoding="utf-8")
    for registry in registries():
        assert f"### {registry.point.__name__}" in text
        for name in registry.types:
            assert f"#### `{name}`" in text


def test_every_parameter_is_explained() -> None:
    for registry in registries():
        for plugin in registry.types.values():
            missing = plugin.params_type.model_fields.keys() - descriptions(plugin.params_type).keys()
            assert not missing, plugin.__name__
