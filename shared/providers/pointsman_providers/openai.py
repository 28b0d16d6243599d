"""OpenAI-compatible services, and others that serve the API which the client used: requests and answers pass through.

Only the model's name changes, so that the client gets back the name that it asked for.
"""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.responses import RESPONSES
from pointsman_core.config import Provider
from pointsman_core.refusal import Refusal
from pointsman_providers.client_parts import with_query
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import REQUEST, SESSION, ProviderKind
from pointsman_providers.openai_history import LENIENT, ChatDialect, mended_chat, repaired_messages
from pointsman_providers.passed_answer import Passed

PATHS: Final = {api.name: api.path.removeprefix("/v1") for api in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)}
"""After a base URL that ends in `/v1`."""
_URL: Final = "https://api.openai.com/v1"


_DIALECTS: Final = {
    "api.openai.com": ChatDialect(strict=True),
    "api.groq.com": ChatDialect(strict=True),
    "api.mistral.ai": ChatDialect("mistral", strict=True),
}
"""The dialects of services that refuse other members of messages or other ids (suitenumerique/conversations #402,
QwenLM/qwen-code #3304)."""


def dialect_of(provider: Provider, dialect: ChatDialect | None = None) -> ChatDialect:
    """The messages that a provider takes. `dialect`: of its kind; None: by its host."""
    if dialect is None:
        host = urlsplit(provider.base_url or _URL).hostname or ""
        dialect = _DIALECTS.get(host, LENIENT)
    strict, ids = provider.strict_messages, provider.tool_call_ids
    return dialect._replace(
        strict=dialect.strict if strict is None else strict, ids=dialect.ids if ids is None else ids
    )


def passed_body(question: ProviderQuestion, dialect: ChatDialect) -> bytes:
    """The client's body, with a history that the service takes."""
    return mended_chat(question.body, dialect) if question.api == CHAT.name else question.body


def repaired_chat(question: ProviderQuestion, error: bytes, dialect: ChatDialect) -> ProviderQuestion | None:
    """Like `Format.repair_question`, for OpenAI's chats."""
    body = repaired_messages(question.body, error, dialect) if question.api == CHAT.name else None
    return None if body is None else question._replace(body=body)


class OpenAI:
    """The format."""

    def __init__(self, dialect: ChatDialect = LENIENT) -> None:
        self._dialect = dialect

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "an OpenAI-compatible provider", PATHS)
        path = with_query(path, question.sent.query)
        body = passed_body(question, self._dialect)
        return ProviderCall(path, dict(question.sent.headers), body, Passed(question))

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Implements `Format.repair_question`."""
        return repaired_chat(question, error, self._dialect)


def unsupported(api: str, who: str, known: Iterable[str]) -> Refusal:
    """The refusal of an API that a provider doesn't have."""
    names = ", ".join(known)
    return Refusal(
        400,
        f"The model is served by {who}, which doesn't have the API {api}; it has {names}.",
        code="unsupported_api",
        param="model",
    )


KIND: Final = ProviderKind(
    "openai",
    lambda provider: OpenAI(dialect_of(provider)),
    lambda _: _URL,
    client_headers=("openai-beta", *REQUEST, *SESSION),
)
