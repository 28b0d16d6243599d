"""Vertex AI by its OpenAI-compatible endpoint, which has Gemini (`google/gemini-…`) and partners' models, with tools
and streams (https://cloud.google.com/vertex-ai/generative-ai/docs/start/openai).
"""

from typing import ClassVar, Final

from pointsman_apis.chat import CHAT
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_core.config import Provider
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import OpenAI, dialect_of
from pointsman_providers.openai_history import ChatDialect

DIALECT: Final = ChatDialect(strict=True, google=True)


class Vertex(OpenAI):
    """The format; the base URL names project and location."""

    who = "Vertex AI"
    paths: ClassVar = {name: OpenAI.paths[name] for name in (CHAT.name, EMBEDDINGS.name)}

    def __init__(self, dialect: ChatDialect = DIALECT) -> None:
        super().__init__(dialect)


GLOBAL: Final = "global"
"""The location without a region."""


def _url(provider: Provider) -> str:
    host = "" if provider.location == GLOBAL else f"{provider.location}-"
    place = f"projects/{provider.project}/locations/{provider.location}"
    return f"https://{host}aiplatform.googleapis.com/v1/{place}/endpoints/openapi"


KIND: Final = ProviderKind(
    "vertex",
    lambda provider: Vertex(dialect_of(provider, DIALECT)),
    _url,
    url_needs=("project", "location"),
    cloud="google",
)
