"""Who serves a model that isn't ours."""

import subprocess
import sys

import pytest
from pydantic import JsonValue

from pointsman_core.config import load
from pointsman_providers.resolve import resolve


@pytest.mark.requirement("S0-64")
@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"kind": "openai"}, "https://api.openai.com/v1"),
        ({"kind": "openai", "base_url": "http://127.0.0.1:9/v1/"}, "http://127.0.0.1:9/v1"),
        ({"kind": "anthropic"}, "https://api.anthropic.com"),
        ({"kind": "azure", "base_url": "https://mine.openai.azure.com"}, "https://mine.openai.azure.com"),
        ({"kind": "bedrock", "region": "eu-north-1"}, "https://bedrock-runtime.eu-north-1.amazonaws.com"),
        (
            {"kind": "vertex", "project": "p", "location": "europe-west1"},
            "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1/endpoints/openapi",
        ),
        (
            {"kind": "vertex", "project": "p", "location": "global"},
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi",
        ),
    ],
)
def test_a_provider_resolves_to_endpoint_format_and_credential(settings: dict[str, JsonValue], url: str) -> None:
    config = load({"providers": {"far": {**settings, "credential": "env:FAR_KEY"}}})
    provider = resolve(config)["far"]
    assert (provider.name, provider.kind, provider.url) == ("far", settings["kind"], url)
    assert type(provider.format).__name__.lower() == settings["kind"]
    assert provider.credential == "env:FAR_KEY"


def test_nobody_pays_for_the_libraries_of_clouds_that_are_not_called() -> None:
    dear = "[m for m in sys.modules if m.startswith(('botocore', 'google.auth'))]"
    code = f"import sys, pointsman_providers.resolve; print({dear})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
