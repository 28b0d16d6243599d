"""External services that serve models."""

import ipaddress
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pointsman_core.config.section import FromTable, Section
from pointsman_core.header_names import PassableHeader, PassableMember, settable
from pointsman_core.references import SecretReference
from pointsman_core.units import PositiveDuration
from pointsman_core.url_addresses import check_url

_WITH_OPENAIS_API: Final = {
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "xai": "https://api.x.ai/v1",
}
"""Services that people name as a kind."""
_SECRET: Final = ("authorization", "api-key", "x-api-key", "cookie", "x-goog-api-key")


def _references(value: object) -> object:
    return (value,) if isinstance(value, str) else () if value is None else value


class Provider(Section):
    """An external service that serves models."""

    kind: Annotated[str, FromTable("provider kinds")]
    """The API that it has. `openai`: OpenAI's own, and every service with the same API."""
    base_url: str | None = None
    """Default: where the kind's own service is. For `openai` it ends in `/v1`; `azure` needs its resource's URL."""
    credential: Annotated[tuple[SecretReference, ...], BeforeValidator(_references)] = Field(default=(), max_length=32)
    """A reference, `env:NAME` or `file:PATH`, or a list of them; never a secret. The edge reads it. Of several, a
    session keeps one, and each pauses alone when the provider refuses it. Without one `bedrock` and `vertex` use what
    their cloud gives the process, others send none."""
    region: str | None = None
    """AWS region; `bedrock`."""
    project: str | None = None
    """Google Cloud project; `vertex`."""
    location: str | None = None
    """Google Cloud location, e.g. `europe-west1` or `global`; `vertex`."""
    api_version: str | None = None
    """Dated version of Azure's API; default: the v1 API, which has none. `azure`."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Further headers of every request, e.g. `openai-organization`; no secrets."""
    client_headers: tuple[PassableHeader, ...] | None = None
    """Headers of the client's requests that go on to the provider; default: those of its kind. A `*` at the end
    matches every ending. A client's credential never goes on."""
    client_query: tuple[PassableMember, ...] | None = None
    """Members of the client's query that go on to the provider; default: those of its kind."""
    omit_added: tuple[
        Literal["stream_options", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"], ...
    ] = ()
    """Fields without effect on the answer that this provider refuses, whether the gateway adds them or the client sends
    them. An edge finds out by itself, at the price of one refused request; behind Envoy the client gets that
    refusal."""
    prompt_cache_key: bool | None = None
    """Whether requests of a session get a `prompt_cache_key`, a hash of its name, so that the provider finds the cached
    prompt; a client's own stays. Default: at the services of OpenAI, Mistral and xAI, in the APIs documented to take
    it."""
    strict_messages: bool | None = None
    """Whether the provider refuses members of messages that OpenAI's API doesn't have, e.g. another model's
    `reasoning_content`, so that they are left out. Default: at the services of OpenAI, Azure, Google, Groq and
    Mistral."""
    tool_call_ids: Literal["openai", "mistral"] | None = None
    """The ids of tool calls that the provider takes: `openai` at most 40 characters, `mistral` nine letters or digits.
    Others are replaced, alike in call and result. Default: by its host."""
    default_max_tokens: int = Field(default=4096, ge=1)
    """Limit for a chat request that sets none; `anthropic` only, whose API requires one."""
    connect_timeout: PositiveDuration = 5.0
    """How long connecting may take; then the next model is tried."""
    max_pause: PositiveDuration = 300.0
    """Longest pause that it may ask for (`Retry-After`); then it is asked again, whatever it said."""
    on_disconnect: Literal["abort", "drain"] = "abort"
    """When a client leaves an answer: `abort` ends the provider's work. `drain` reads the answer to its end, so that
    limits, budgets and the ledger count what the provider bills. Behind Envoy it is always `abort`."""
    drain_timeout: PositiveDuration = 60.0
    """How long `drain` goes on after the client has left."""
    connections: int = Field(default=200, ge=1)
    """Requests that each edge sends it at once; more wait, for at most `connect_timeout`."""
    plaintext: bool = False
    """Allow an `http://` URL of another host, where anyone on the path can read prompts and credential."""

    @field_validator("kind", mode="before")
    @classmethod
    def _has_openais_api(cls, value: object) -> object:
        url = _WITH_OPENAIS_API.get(value.lower()) if isinstance(value, str) else None
        if url is not None:
            raise ValueError(f"{value!r} has an OpenAI-compatible API: write `kind: openai` and `base_url: {url}`")
        return value

    @field_validator("headers")
    @classmethod
    def _hold_no_secret(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if name.lower() in _SECRET:
                raise ValueError(f"{name}: a secret doesn't belong in this file; use `credential`")
            if not name.isascii() or any(ord(letter) < 32 for letter in name + text):
                raise ValueError(f"{name!r}: not a header")
            settable(name)
        return value

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.base_url is not None:
            parts = urlsplit(self.base_url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("base_url: the URL of a provider must begin with https://")
            if parts.username or parts.password:
                raise ValueError("base_url: a secret doesn't belong in this file; use `credential`")
            if parts.scheme == "http" and not self.plaintext and not _is_here(parts.hostname):
                raise ValueError("base_url: use https://, or allow `plaintext: true`")
            check_url(self.base_url, private=True)
        return self


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
