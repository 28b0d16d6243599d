"""OpenAI-compatible services, and others that serve the API which the client used: requests and answers pass through.

Only the model's name changes, so that the client gets back the name that it asked for.
"""

from collections.abc import Iterable
from typing import Final

from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.embeddings import EMBEDDINGS
from pointsman_apis.responses import RESPONSES
from pointsman_core.refusal import Refusal
from pointsman_providers.exchange import ProviderCall, ProviderQuestion
from pointsman_providers.kind import ProviderKind
from pointsman_providers.passed_answer import Passed

PATHS: Final = {api.name: api.path.removeprefix("/v1") for api in (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)}
"""After a base URL that ends in `/v1`."""


class OpenAI:
    """The format."""

    def call(self, question: ProviderQuestion) -> ProviderCall:
        """As `Format.call`."""
        path = PATHS.get(question.api)
        if path is None:
            raise unsupported(question.api, "an OpenAI-compatible provider", PATHS)
        return ProviderCall(path, {}, question.body, Passed(question))


def unsupported(api: str, who: str, known: Iterable[str]) -> Refusal:
    """The refusal of an API that a provider doesn't have."""
    names = ", ".join(known)
    return Refusal(
        400,
        f"The model is served by {who}, which doesn't have the API {api}; it has {names}.",
        code="unsupported_api",
        param="model",
    )


KIND: Final = ProviderKind("openai", lambda _: OpenAI(), lambda _: "https://api.openai.com/v1")
