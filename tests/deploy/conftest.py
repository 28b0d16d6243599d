"""The chart, rendered with values of a test's own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/render_manifests.py"
HOOK = "helm.sh/hook"
NO_RENDERER = 3
"""The script's exit code where neither helm-python-sdk nor helm is installed."""


@pytest.fixture(scope="session")
def template() -> Callable[..., list[dict[str, Any]]]:
    """A function from values to the objects that the chart renders with them over its own; with `hooks` those for
    Helm's moments instead. RuntimeError has Helm's message. Skips the test where no renderer is installed."""

    def rendered(values: dict[str, Any] | None = None, *, hooks: bool = False) -> list[dict[str, Any]]:
        command = [sys.executable, str(SCRIPT), "--values", "-"]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, input=json.dumps(values or {}))
        if ran.returncode == NO_RENDERER:
            pytest.skip(ran.stderr)
        if ran.returncode:
            raise RuntimeError(ran.stderr)
        objects = [each for each in yaml.load_all(ran.stdout, yaml.CSafeLoader) if each]
        return [each for each in objects if (HOOK in each["metadata"].get("annotations", {})) == hooks]

    return rendered
