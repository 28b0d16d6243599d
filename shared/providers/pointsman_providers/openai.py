"""OpenAI-compatible services, and others that serve the API which the client used: requests and answers pass through.

Only the model's name changes, so that the client gets back the name that it asked for.
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final
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


_KEYED: Final = {
    "api.openai.com": frozenset({CHAT.name, RESPONSES.name}),
    "api.mistral.ai": frozenset({CHAT.name}),
    "api.x.ai": frozenset({RESPONSES.name}),
}
"""Documented to take `prompt_cache_key`. Groq and Cerebras refuse requests that have it (zed-industries/zed #36215),
and so do models of Azure that aren't OpenAI's (vectorize-io/hindsight #3518)."""


def _host(provider: Provider) -> str:
    return urlsplit(provider.base_url or _URL).hostname or ""


def dialect_of(provider: Provider, dialect: ChatDialect | None = None) -> ChatDialect:
    """The messages that a provider takes. `dialect`: of its kind; None: by its host."""
    if dialect is None:
        dialect = _DIALECTS.get(_host(provider), LENIENT)
    strict, ids = provider.strict_messages, provider.tool_call_ids
    return dialect._replace(
        strict=dialect.strict if strict is None else strict, ids=dialect.ids if ids is None else ids
    )


class OpenAI:
    """The format."""

    who: ClassVar = "an OpenAI-compatible provider"
    """The service, in the words of an error."""
    paths: ClassVar[Mapping[str, str]] = PATHS

    def __init__(self, dialect: ChatDialect = LENIENT) -> None:
        self._dialect = dialect

    def translate_request(self, question: ProviderQuestion) -> ProviderCall:
        if question.api not in self.paths:
            raise unsupported(question.api, self.who, self.paths)
        path = with_query(self.find_path(question), question.sent.query)
        body = mended_chat(question.body, self._dialect) if question.api == CHAT.name else question.body
        return ProviderCall(path, dict(question.sent.headers), body, Passed(question))

    def find_path(self, question: ProviderQuestion) -> str:
        """The path of a known API after the base URL."""
        return self.paths[question.api]

    def repair_question(self, question: ProviderQuestion, error: bytes) -> ProviderQuestion | None:
        """Implements `Format.repair_question`."""
        body = repaired_messages(question.body, error, self._dialect) if question.api == CHAT.name else None
        return None if body is None else question._replace(body=body)


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
    keyed_apis=lambda provider: _KEYED.get(_host(provider), frozenset()),
)
