"""Who serves a model that isn't one of our own engines' (S0-64): endpoint, format, reference to the credential."""

from typing import Final, NamedTuple

from pointsman_core.config import Config, Provider
from pointsman_providers.anthropic import Anthropic
from pointsman_providers.azure import Azure
from pointsman_providers.bedrock import Bedrock
from pointsman_providers.exchange import Format
from pointsman_providers.openai import OpenAI
from pointsman_providers.vertex import Vertex

GOOGLE_GLOBAL: Final = "global"
"""Vertex AI's location without a region."""


class Resolved(NamedTuple):
    """One provider."""

    name: str
    kind: str
    url: str
    """Base URL without a slash at its end; the format's paths follow."""
    format: Format
    credential: str | None
    """`env:NAME` or `file:PATH`; None leaves it to the cloud's own chain, or needs none."""
    settings: Provider


def resolve(config: Config) -> dict[str, Resolved]:
    """Every provider of a configuration, by name."""
    return {
        name: Resolved(
            name, provider.kind, base_url(provider).rstrip("/"), _format(provider), provider.credential, provider
        )
        for name, provider in config.providers.items()
    }


def base_url(provider: Provider) -> str:
    """Where a provider is reached: what the configuration says, or where the kind's own service is."""
    if provider.base_url is not None:
        return provider.base_url
    match provider.kind:
        case "openai":
            return "https://api.openai.com/v1"
        case "anthropic":
            return "https://api.anthropic.com"
        case "bedrock":
            return f"https://bedrock-runtime.{provider.region}.amazonaws.com"
        case "vertex":
            host = "" if provider.location == GOOGLE_GLOBAL else f"{provider.location}-"
            place = f"projects/{provider.project}/locations/{provider.location}"
            return f"https://{host}aiplatform.googleapis.com/v1/{place}/endpoints/openapi"
        case "azure":
            raise AssertionError("the configuration insists on its URL")


def _format(provider: Provider) -> Format:
    match provider.kind:
        case "openai":
            return OpenAI()
        case "anthropic":
            return Anthropic(provider.default_max_tokens)
        case "bedrock":
            return Bedrock()
        case "azure":
            return Azure(provider.api_version)
        case "vertex":
            return Vertex()
