"""Secrets are found by references, and clouds' accounts become what a request needs."""

import json
import os
from pathlib import Path

import pytest
from aiohttp import web

from pointsman_core.config import load
from pointsman_edge.credentials.aws_signature import AwsSigner
from pointsman_edge.credentials.google_token import GoogleTokens
from pointsman_edge.credentials.provider_credentials import CredentialMissing, Credentials
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_providers.resolve import Resolved, resolve

URL = "https://far.example/v1/chat"


def provider(credential: str | None, kind: str = "openai") -> Resolved:
    """A provider with this credential."""
    settings = {"kind": kind, "base_url": "https://far.example", "region": "r", "credential": credential}
    return resolve(load({"providers": {"far": settings}}))["far"]


async def authorized(credential: str | None, kind: str = "openai") -> dict[str, str]:
    headers: dict[str, str] = {}
    await Credentials().add_credential(provider(credential, kind), URL, headers, b"{}")
    return headers


@pytest.mark.requirement("S0-67")
async def test_a_file_is_read_anew_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")
    credentials = Credentials()
    assert credentials.secret(f"file:{file}") == "first"
    file.write_text("second\n")
    os.utime(file, (1, 1))
    assert credentials.secret(f"file:{file}") == "second"


@pytest.mark.parametrize("content", ["", " \n", None])
async def test_an_empty_or_missing_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(CredentialMissing, match=str(tmp_path / "key")):
        Credentials().secret(f"file:{tmp_path / 'key'}")


@pytest.mark.parametrize(
    ("kind", "secret", "header", "value"),
    [
        ("openai", "sk-1", "authorization", "Bearer sk-1"),
        ("anthropic", "sk-1", "x-api-key", "sk-1"),
        ("azure", "sk-1", "api-key", "sk-1"),
        ("azure", "eyJ.a.b", "authorization", "Bearer eyJ.a.b"),
        ("bedrock", "key", "authorization", "Bearer key"),
        ("vertex", "ya29.x", "authorization", "Bearer ya29.x"),
    ],
)
async def test_each_kind_sees_its_key_where_it_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, secret: str, header: str, value: str
) -> None:
    monkeypatch.setenv("FAR_KEY", secret)
    assert await authorized("env:FAR_KEY", kind) == {header: value}


@pytest.mark.parametrize("kind", ["openai", "anthropic", "azure"])
async def test_a_service_without_a_credential_gets_none(kind: str) -> None:
    assert await authorized(None, kind) == {}


async def test_aws_keys_of_the_process_sign_when_none_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEPROCESS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    headers = await authorized(None, "bedrock")
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAOFTHEPROCESS/")
    assert headers["X-Amz-Security-Token"] == "token"


@pytest.mark.parametrize("secret", ["{", "{}", '{"aws_access_key_id": "a"}', "[", "[default]\n", "[x]\nfoo = 1"])
async def test_aws_keys_that_are_none_are_refused_without_quoting_them(secret: str) -> None:
    with pytest.raises(ValueError, match=r"neither JSON|it needs") as refused:
        await AwsSigner().sign_post(secret, "r", URL, {}, b"")
    assert secret not in str(refused.value)


async def test_an_account_of_google_gets_a_token_once_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    async def token(request: web.Request) -> web.Response:
        asked.append({name: str(value) for name, value in (await request.post()).items()})
        return web.json_response({"access_token": "ya29.fresh", "expires_in": 3600, "token_type": "Bearer"})

    app = web.Application()
    app.router.add_post("/token", token)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        # Accounts of people ask Google alone, and those of services need a key of their own.
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
        monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", endpoint)
        account = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
        (tmp_path / "account.json").write_text(json.dumps(account))
        credentials, far = Credentials(), provider(f"file:{tmp_path / 'account.json'}", "vertex")
        for _ in range(2):
            headers: dict[str, str] = {}
            await credentials.add_credential(far, URL, headers, b"")
            assert headers == {"authorization": "Bearer ya29.fresh"}
    finally:
        await runner.cleanup()
    assert [form["grant_type"] for form in asked] == ["refresh_token"]


async def test_an_account_that_is_none_is_refused_without_quoting_it() -> None:
    with pytest.raises(ValueError, match="neither service_account nor authorized_user") as refused:
        await GoogleTokens().token('{"type": "canary"}')
    assert "canary" not in str(refused.value)


def test_a_number_that_a_bucket_made_anew_gives_again_has_the_providers_of_its_own_revision() -> None:
    book = ProviderBook(Credentials())
    for number, name in ((3, "before"), (1, "first"), (3, "again")):
        policy = compile_policy(
            load({"providers": {name: {"kind": "openai", "base_url": "https://far.example"}}}), number
        )
        book.log_missing(policy)
        found = [each for each in ("before", "first", "again") if book.find_provider(policy, each) is not None]
        assert found == [name]
