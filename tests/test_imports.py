"""The modules that a process loads at its start: every service of a gateway in one process, and no module that it may
never need."""

import subprocess
import sys
from typing import Final

import pytest

SERVICES: Final = (
    "frontend", "preprocessor", "profile_picker", "model_selector", "scheduler", "metrics_collector", "worker_agent",
    "recorder",
)  # fmt: skip
WHERE_USED: Final = (
    "boto3", "cryptography", "envoy", "fastapi", "grpc", "jinja2", "jwt", "kubernetes", "kubernetes_asyncio",
    "matplotlib", "ngh2", "onnxruntime", "opentelemetry.sdk", "rich", "starlette", "tokenizers", "zmq",
)  # fmt: skip
"""Loaded by the configuration, the plugin or the engine that needs it."""


def loaded(*modules: str) -> set[str]:
    """The modules in memory after these were imported."""
    code = f"import sys, {', '.join(modules)}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("services", [SERVICES, ("guard", "semantic_cache")], ids=["gateway", "on demand"])
def test_services_start_without_what_only_some_configurations_use(services: tuple[str, ...]) -> None:
    found = loaded(*(f"pointsman_{service}.main" for service in services))
    assert sorted(found & set(WHERE_USED)) == []
