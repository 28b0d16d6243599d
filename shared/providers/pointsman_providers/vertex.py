"""Vertex AI by its OpenAI-compatible endpoint, which has Gemini (`google/gemini-…`) and partners' models, with tools
and streams (https://cloud.google.com/vertex-ai/generative-ai/docs/start/openai).
"""

from typing import Final

from pointsman_apis.chat import CHAT
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_core.config import Provider
from pointsman_providers.client_parts import with_query
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.openai import dialect_of, passed_body, repaired_chat, unsupported
from pointsman_providers.openai_history import ChatDialect
from pointsman_providers.passed_answer import Passed

PATHS: Final = {api.name: api.path.removeprefix("/v1") for api in (CHAT, EMBEDDINGS)}


DIALECT: Final = ChatDialect(strict=True, google=True)


class Vertex:
    """The format; the base URL names project and location."""

    def __init__(self, dialect: ChatDialect = DIALECT) -> None:
        self._dialect = dialect

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "Vertex AI", PATHS)
        path = with_query(path, question.sent.query)
        body = passed_body(question, self._dialect)
        return ProviderCall(path, dict(question.sent.headers), body, Passed(question))

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Implements `Format.repair_question`."""
        return repaired_chat(question, error, self._dialect)


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
