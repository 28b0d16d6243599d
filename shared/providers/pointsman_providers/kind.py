"""A kind of provider: its URL, its format and how it takes a credential. Each kind has a module; `kinds` lists them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pointsman_core.config import Provider
from pointsman_providers.exchange import Format


def bearer(secret: str) -> tuple[str, str]:
    """The header of most services."""
    return "authorization", f"Bearer {secret}"


@dataclass(frozen=True)
class ProviderKind:
    """One kind of provider."""

    name: str
    """As `kind` of the configuration."""
    format: Callable[[Provider], Format]
    url: Callable[[Provider], str]
    """Base URL of the kind's own service, for a provider without `base_url`."""
    needs: tuple[str, ...] = ()
    """Keys of the configuration that a provider of this kind must have."""
    url_needs: tuple[str, ...] = ()
    """Keys that it must have unless it has a `base_url`."""
    header: Callable[[str], tuple[str, str]] = bearer
    """The header, name and value, that carries a secret."""
    cloud: Literal["aws", "google"] | None = None
    """The cloud whose accounts serve as credentials, or whose environment does where none is configured."""
