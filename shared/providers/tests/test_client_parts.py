"""The headers and the query of a client that go on to its provider."""

import pytest
from pydantic import ValidationError

from pointsman_core.config import Provider
from pointsman_core.config.model import Config
from pointsman_providers.exchange import FromClient
from pointsman_providers.kinds import KINDS
from pointsman_providers.resolve import resolve
from pointsman_testing.provider_messages import ask

CANARY = "canary-5521"
CREDENTIALS = [
    (name, CANARY.encode())
    for name in (
        b"authorization", b"x-api-key", b"api-key", b"cookie", b"proxy-authorization", b"x-goog-api-key",
        b"x-amz-security-token", b"x-auth-token", b"openai-organization", b"x-codex-access-token",
    )
]  # fmt: skip
SENT = [
    *CREDENTIALS,
    (b"anthropic-beta", b"context-management-2025-06-27, oauth-2025-04-20"),
    (b"anthropic-beta", b"effort-2025-11-24"),
    (b"anthropic-version", b"2023-06-01"),
    (b"openai-beta", b"responses=v1"),
    (b"idempotency-key", b"i-1"),
    (b"x-client-request-id", b"r-1"),
    (b"session_id", b"s-1\r\nx: y"),
    (b"x-codex-window-id", b"w-1"),
    (b"x-claude-code-session-id", b"c-1"),
    (b"x-stainless-os", b"Linux"),
    (b"user-agent", b"x"),
]
QUERY = f"beta=true&key={CANARY}&api-version=2&access_token={CANARY}".encode()
RESOURCE = "https://x.example"


def _parts(kind: str, **more: object) -> FromClient:
    fields = {"kind": kind, "base_url": RESOURCE, "region": "eu-north-1", **more}
    provider = resolve(Config.model_validate({"providers": {"p": fields}}))["p"]
    return provider.client.parts_of(SENT, QUERY, "00-trace-1")


@pytest.mark.parametrize(
    ("kind", "names", "query"),
    [
        (
            "anthropic",
            "anthropic-beta anthropic-version idempotency-key x-claude-code-session-id x-client-request-id",
            "beta=true",
        ),
        ("openai", "idempotency-key openai-beta session_id x-client-request-id x-codex-window-id", ""),
        ("azure", "idempotency-key session_id x-client-request-id x-codex-window-id", ""),
        ("bedrock", "anthropic-beta", ""),
        ("vertex", "", ""),
    ],
)
def test_each_kind_gets_its_own_list_and_no_credential(kind: str, names: str, query: str) -> None:
    parts = _parts(kind)
    assert (sorted(parts.headers), parts.query) == (names.split(), query)
    assert CANARY not in str(parts)


@pytest.mark.parametrize("more", [{}, {"client_headers": []}])
@pytest.mark.parametrize("kind", ["openai", "anthropic", "azure", "vertex"])
def test_the_mark_of_a_copy_goes_on_to_every_provider(kind: str, more: dict[str, object]) -> None:
    provider = resolve(Config.model_validate({"providers": {"p": {"kind": kind, "base_url": RESOURCE, **more}}}))["p"]
    assert provider.client.parts_of([(b"x-mirrored-by", b"pointsman")], b"", None).headers == {
        "x-mirrored-by": "pointsman"
    }


def test_betas_add_up_without_those_of_the_clients_own_account() -> None:
    assert _parts("anthropic").headers["anthropic-beta"] == "context-management-2025-06-27,effort-2025-11-24"


def test_a_value_can_not_end_its_header() -> None:
    assert _parts("openai").headers["session_id"] == "s-1  x: y"


def test_the_configuration_replaces_the_lists() -> None:
    parts = _parts("openai", client_headers=["traceparent", "x-stainless-*"], client_query=["api-version"])
    assert parts == FromClient({"x-stainless-os": "Linux", "traceparent": "00-trace-1"}, "api-version=2")
    assert _parts("anthropic", client_headers=[], client_query=[]) == FromClient({}, "")
    assert CANARY not in str(_parts("openai", client_headers=["x-*"]))


@pytest.mark.parametrize(
    "name",
    ["authorization", "X-API-Key", "cookie", "x-goog-api-key", "*", "host", "content-type", "x-session-token", ""],
)
def test_a_header_that_may_hold_a_credential_can_not_be_listed(name: str) -> None:
    with pytest.raises(ValidationError):
        Provider.model_validate({"kind": "openai", "client_headers": [name]})


@pytest.mark.parametrize("name", ["key", "access_token", "sig", ""])
def test_a_member_that_may_hold_a_credential_can_not_be_listed(name: str) -> None:
    with pytest.raises(ValidationError):
        Provider.model_validate({"kind": "openai", "client_query": [name]})


def test_the_parts_are_in_the_call() -> None:
    sent = FromClient({"anthropic-beta": "a,b", "anthropic-version": "2024-01-01"}, "beta=true")
    format_of = {name: kind.format(Provider(kind=name, base_url=RESOURCE)) for name, kind in KINDS.items()}
    passed = format_of["anthropic"].translate_request(ask("messages", max_tokens=1)._replace(sent=sent))
    assert (passed.path, passed.headers) == ("/v1/messages?beta=true", dict(sent.headers))
    translated = format_of["anthropic"].translate_request(ask()._replace(sent=sent))
    assert (translated.path, translated.headers["anthropic-version"]) == ("/v1/messages", "2023-06-01")
    claude = format_of["bedrock"].translate_request(ask()._replace(sent=sent, model="eu.anthropic.claude-x"))
    assert b'"additionalModelRequestFields":{"anthropic_beta":["a","b"]}' in claude.body
    assert "anthropic-beta" not in claude.headers
    assert (
        b"anthropic_beta"
        not in format_of["bedrock"].translate_request(ask()._replace(sent=sent, model="amazon.nova")).body
    )
