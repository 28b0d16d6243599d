"""Who serves a model that isn't ours."""

import subprocess
import sys

import pytest
from pydantic import JsonValue

from pointsman_core.config import ConfigError, load
from pointsman_providers.resolve import check, resolve


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
    assert (provider.name, provider.kind.name, provider.url) == ("far", settings["kind"], url)
    assert type(provider.format).__name__.lower() == settings["kind"]
    assert provider.credential == "env:FAR_KEY"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"kind": "gpt"},
            "providers.p.kind: unknown kind of provider 'gpt'; known: anthropic, azure, bedrock, openai, vertex",
        ),
        ({"kind": "azure"}, "providers.p: azure needs `base_url`"),
        ({"kind": "bedrock"}, "providers.p: bedrock needs `region`"),
        ({"kind": "bedrock", "base_url": "https://far.example"}, "providers.p: bedrock needs `region`"),
        ({"kind": "vertex", "project": "p"}, "providers.p: vertex needs `location`"),
        ({"kind": "vertex", "base_url": "https://far.example"}, None),
    ],
)
def test_a_provider_is_refused_for_its_kind_or_a_key_that_the_kind_needs(
    settings: dict[str, JsonValue], problem: str | None
) -> None:
    config = load({"providers": {"p": settings}})
    if problem is None:
        check(config)
    else:
        with pytest.raises(ConfigError) as refused:
            check(config)
        assert [f"{path}: {words}" for path, words in refused.value.problems] == [problem]


def test_libraries_of_clouds_that_are_not_called_cost_nothing() -> None:
    dear = "[m for m in sys.modules if m.startswith(('botocore', 'google.auth'))]"
    code = f"import sys, pointsman_providers.resolve; print({dear})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
