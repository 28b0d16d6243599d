"""The paths that are sent on to engines. A further one is one more line here."""

from typing import Final

MESSAGES: Final = "messages"
"""Anthropic's API, whose errors have another shape."""
RESPONSES: Final = "responses"
"""OpenAI's API whose streams know an error event of their own."""
ROUTES: Final[dict[str, str]] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""Path → `RequestFacts.api`."""
METHOD: Final = "POST"
MODELS: Final = "/v1/models"
"""The list of models; one of them is behind it."""
