"""Azure OpenAI: OpenAI's API under other paths, by names of deployments.

Without `api_version` it is the v1 API, where `model` names the deployment; with one, the dated API, where the path
does (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle).
"""

from typing import Final
from urllib.parse import quote

from pointsman_apis.responses import RESPONSES
from pointsman_core.config import Provider
from pointsman_providers.exchange import ProviderQuestion
from pointsman_providers.kind import REQUEST, SESSION, ProviderKind, bearer
from pointsman_providers.openai import OpenAI, dialect_of
from pointsman_providers.openai_history import ChatDialect

DIALECT: Final = ChatDialect(strict=True)


class Azure(OpenAI):
    """The format."""

    who = "Azure OpenAI"

    def __init__(self, api_version: str | None, dialect: ChatDialect = DIALECT) -> None:
        super().__init__(dialect)
        self._version = api_version

    def find_path(self, question: ProviderQuestion) -> str:
        path = super().find_path(question)
        if self._version is None:
            return f"/openai/v1{path}"
        if question.api == RESPONSES.name:
            return f"/openai{path}?api-version={quote(self._version, safe='')}"
        deployment = quote(question.model, safe="")
        return f"/openai/deployments/{deployment}{path}?api-version={quote(self._version, safe='')}"


_JWT: Final = "eyJ"
"""The beginning of a JSON web token, as Microsoft Entra issues them."""


def _header(secret: str) -> tuple[str, str]:
    return bearer(secret) if secret.startswith(_JWT) else ("api-key", secret)


def _no_url(_: Provider) -> str:
    raise AssertionError("`url_needs` has base_url")


def _azure(provider: Provider) -> Azure:
    return Azure(provider.api_version, dialect_of(provider, DIALECT))


KIND: Final = ProviderKind(
    "azure",
    _azure,
    _no_url,
    url_needs=("base_url",),
    header=_header,
    client_headers=("x-ms-client-request-id", *REQUEST, *SESSION),
)
