"""Vertex AI by its OpenAI-compatible endpoint, which has Gemini (`google/gemini-…`) and partners' models, with tools
and streams (https://cloud.google.com/vertex-ai/generative-ai/docs/start/openai).
"""

from typing import Final

from pointsman_apis.chat import CHAT
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_core.config import Provider
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import unsupported
from pointsman_providers.passed_answer import Passed

PATHS: Final = {api.name: api.path.removeprefix("/v1") for api in (CHAT, EMBEDDINGS)}


class Vertex:
    """The format; the base URL names project and location."""

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """As `Format.call`."""
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "Vertex AI", PATHS)
        return ProviderCall(path, {}, question.body, Passed(question))


GLOBAL: Final = "global"
"""The location without a region."""


def _url(provider: Provider) -> str:
    host = "" if provider.location == GLOBAL else f"{provider.location}-"
    place = f"projects/{provider.project}/locations/{provider.location}"
    return f"https://{host}aiplatform.googleapis.com/v1/{place}/endpoints/openapi"


KIND: Final = ProviderKind("vertex", lambda _: Vertex(), _url, url_needs=("project", "location"), cloud="google")
