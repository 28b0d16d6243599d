"""The paths that are sent on to engines. A further one is one more line here."""

from typing import Final

ROUTES: Final[dict[str, str]] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
"""Path → `RequestFacts.api`."""
METHOD: Final = "POST"
