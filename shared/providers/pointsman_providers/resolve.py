"""The provider of a model (S0-64): its endpoint, its format and the reference to its credential."""

from typing import Final, NamedTuple

from pointsman_apis.chat import CHAT
from pointsman_apis.responses import RESPONSES
from pointsman_core.config import Config, ConfigError, Provider
from pointsman_core.header_names import MIRRORED
from pointsman_core.plugins import unknown
from pointsman_providers.client_parts import ClientParts
from pointsman_providers.exchange import Format
from pointsman_providers.kind import ProviderKind
from pointsman_providers.kinds import KINDS

_KEYABLE: Final = frozenset({CHAT.name, RESPONSES.name})
"""APIs that have the field."""


class Resolved(NamedTuple):
    """One provider."""

    name: str
    kind: ProviderKind
    url: str
    """Base URL without a slash at its end; the format's paths follow."""
    format: Format
    credential: str | None
    """`env:NAME` or `file:PATH`; None leaves it to the cloud's own chain, or needs none."""
    credentials: tuple[str, ...]
    """All of them, where a request goes with one of several."""
    settings: Provider
    client: ClientParts
    """The parts of a client's request that go on to it, besides the body."""
    keyed_apis: frozenset[str]
    """APIs in which its requests get the `prompt_cache_key` of their session."""


def check(config: Config) -> None:
    """Raise ConfigError for providers of an unknown kind, or without a key that their kind needs."""
    problems: list[tuple[str, str]] = []
    for name, provider in config.providers.items():
        kind = KINDS.get(provider.kind)
        if kind is None:
            problems.append((f"providers.{name}.kind", unknown("kind of provider", provider.kind, KINDS)))
            continue
        needed = kind.needs if provider.base_url is not None else (*kind.needs, *kind.url_needs)
        missing = [f"`{key}`" for key in needed if getattr(provider, key) is None]
        if missing:
            problems.append((f"providers.{name}", f"{kind.name} needs {' and '.join(missing)}"))
    if problems:
        raise ConfigError(problems)


def resolve(config: Config) -> dict[str, Resolved]:
    """Every provider of a configuration that `check` accepts, by name."""
    return {name: _resolved(name, provider) for name, provider in config.providers.items()}


def _resolved(name: str, provider: Provider) -> Resolved:
    kind = KINDS[provider.kind]
    url = kind.url(provider) if provider.base_url is None else provider.base_url
    headers = kind.client_headers if provider.client_headers is None else provider.client_headers
    query = kind.client_query if provider.client_query is None else provider.client_query
    client = ClientParts((*headers, MIRRORED), query)
    return Resolved(
        name=name,
        kind=kind,
        url=url.rstrip("/"),
        format=kind.format(provider),
        credential=next(iter(provider.credential), None),
        credentials=tuple(dict.fromkeys(provider.credential)),
        settings=provider,
        client=client,
        keyed_apis=_keyed_apis(kind, provider),
    )


def _keyed_apis(kind: ProviderKind, provider: Provider) -> frozenset[str]:
    if provider.prompt_cache_key is None:
        return kind.keyed_apis(provider)
    return _KEYABLE if provider.prompt_cache_key else frozenset()
