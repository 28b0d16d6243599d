"""A kind of provider: its URL, its format and how it takes a credential. Each kind has a module; `kinds` lists them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from pointsman_core.config import Provider
from pointsman_providers.exchange import Format


def bearer(secret: str) -> tuple[str, str]:
    """The header of most services."""
    return "authorization", f"Bearer {secret}"


REQUEST: Final = ("idempotency-key", "x-client-request-id")
"""A client's own names for a request."""
SESSION: Final = (
    "session_id", "session-id", "conversation_id", "thread-id", "x-session-id", "x-grok-conv-id", "x-opencode-session",
    "originator", "x-codex-*",
)  # fmt: skip
"""A client's names for its conversation, by which OpenAI-compatible services route and cache (openai/codex, xAI's and
OpenCode's documentation)."""


@dataclass(frozen=True)
class ProviderKind:
    """One kind of provider."""

    name: str
    """Like `kind` of the configuration."""
    format: Callable[[Provider], Format]
    url: Callable[[Provider], str]
    """Base URL of the kind's own service, for a provider without `base_url`."""
    needs: tuple[str, ...] = ()
    """Keys of the configuration that a provider of this kind must have."""
    url_needs: tuple[str, ...] = ()
    """Keys that it must have unless it has a `base_url`."""
    header: Callable[[str], tuple[str, str]] = bearer
    """The header, name and value, that carries a secret."""
    client_headers: tuple[str, ...] = ()
    """Headers of the client's requests that the provider gets unless `client_headers` of the configuration lists
    others. A `*` at the end matches every ending."""
    client_query: tuple[str, ...] = ()
    """Members of the client's query that it gets unless `client_query` lists others."""
    keyed_apis: Callable[[Provider], frozenset[str]] = lambda _: frozenset()
    """APIs in which the service is known to take `prompt_cache_key`."""
    cloud: Literal["aws", "google"] | None = None
    """The cloud whose accounts serve as credentials, or whose environment does where none is configured."""
