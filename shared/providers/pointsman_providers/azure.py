"""Azure OpenAI: OpenAI's API under other paths, by names of deployments.

Without `api_version` it is the v1 API, where `model` names the deployment; with one, the dated API, where the path
does (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle).
"""

from typing import Final
from urllib.parse import quote

from pointsman_apis.responses import RESPONSES
from pointsman_core.config import Provider
from pointsman_providers.client_parts import with_query
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import REQUEST, SESSION, ProviderKind, bearer
from pointsman_providers.openai import PATHS, dialect_of, passed_body, repaired_chat, unsupported
from pointsman_providers.openai_history import ChatDialect
from pointsman_providers.passed_answer import Passed

DIALECT: Final = ChatDialect(strict=True)


class Azure:
    """The format."""

    def __init__(self, api_version: str | None, dialect: ChatDialect = DIALECT) -> None:
        self._version = api_version
        self._dialect = dialect

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "Azure OpenAI", PATHS)
        if self._version is None:
            path = f"/openai/v1{path}"
        elif question.api == RESPONSES.name:
            path = f"/openai{path}?api-version={quote(self._version, safe='')}"
        else:
            deployment = quote(question.model, safe="")
            path = f"/openai/deployments/{deployment}{path}?api-version={quote(self._version, safe='')}"
        path = with_query(path, question.sent.query)
        body = passed_body(question, self._dialect)
        return ProviderCall(path, dict(question.sent.headers), body, Passed(question))

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Implements `Format.repair_question`."""
        return repaired_chat(question, error, self._dialect)


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
