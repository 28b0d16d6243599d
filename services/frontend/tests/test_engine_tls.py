"""Engines with certificates of a private authority, by the settings of their pool."""

import ssl
from pathlib import Path

import pytest

from pointsman_contracts.response import AttemptFailed
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import ANSWER, Received, ScriptedEngine

CERTIFICATES = Path(__file__).with_name("certificates")
FIRST = str(CERTIFICATES / "first.crt")
"""An authority, and the certificate that it has for 127.0.0.1 and localhost."""
CHAT = "/v1/chat/completions"
BODY = b'{"model":"llama-8b","messages":[{"role":"user","content":"hello"}]}'


def serving(*, client_ca: str | None = None) -> ssl.SSLContext:
    """An engine's side. `client_ca`: it asks for a certificate of this authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FIRST, CERTIFICATES / "first.key")
    if client_ca is not None:
        context.load_verify_locations(CERTIFICATES / client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def pool(**tls: object) -> dict[str, object]:
    return {"pools": {"llama-8b": {"models": ["llama-8b"], "tls": tls}}}


@pytest.mark.parametrize("tls", [{"ca": FIRST}, {"ca": FIRST, "server_name": "localhost"}, {"verify": False}])
async def test_an_engine_of_a_private_authority_answers(start_edge: StartEdge, tls: dict[str, object]) -> None:
    async with ScriptedEngine(tls=serving()) as engine:
        edge = await start_edge(engine.url, config=pool(**tls))
        for _ in range(2):
            answer = await raw_request(edge.url, post(CHAT, BODY))
            assert (answer.status, answer.body) == (200, ANSWER)
        assert engine.connections == 1


@pytest.mark.parametrize("tls", [{}, {"ca": FIRST, "server_name": "other.test"}, {"ca": "/nowhere.pem"}])
async def test_a_certificate_that_cant_be_checked_is_refused_before_anything_is_sent(
    start_edge: StartEdge, tls: dict[str, object]
) -> None:
    async with ScriptedEngine(tls=serving()) as engine:
        edge = await start_edge(engine.url, config=pool(**tls))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 502
        assert engine.received == []
    assert [each.outcome for each in edge.events.of(AttemptFailed)] == ["refused"]


async def test_an_engine_that_asks_for_a_certificate_gets_the_pools(start_edge: StartEdge, tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_text((CERTIFICATES / "second.crt").read_text() + (CERTIFICATES / "second.key").read_text())
    async with ScriptedEngine(tls=serving(client_ca="second.crt")) as engine:
        without = await start_edge(engine.url, config=pool(ca=FIRST))
        assert (await raw_request(without.url, post(CHAT, BODY))).status == 502
        edge = await start_edge(engine.url, config=pool(ca=FIRST, client_certificate=str(own)))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200


async def test_a_renewed_authority_is_read_without_a_restart(start_edge: StartEdge, tmp_path: Path) -> None:
    trusted, first = tmp_path / "ca.pem", (CERTIFICATES / "first.crt").read_text()
    trusted.write_text((CERTIFICATES / "second.crt").read_text())
    async with ScriptedEngine(tls=serving()) as engine:
        edge = await start_edge(engine.url, config=pool(ca=str(trusted)))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 502
        trusted.write_text(first)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200


async def test_a_renewed_file_that_cant_be_used_leaves_the_one_before_in_use(
    start_edge: StartEdge, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted, first = tmp_path / "ca.pem", (CERTIFICATES / "first.crt").read_text()

    async def close_each(request: Received) -> None:
        await request.answer(ANSWER, more="connection: close\r\n")

    async with ScriptedEngine(close_each, tls=serving()) as engine:
        trusted.write_text(first)
        edge = await start_edge(engine.url, config=pool(ca=str(trusted)))
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        trusted.write_text("half a cert")
        for _ in range(2):
            assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        trusted.unlink()
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
        assert caplog.text.count("engine_tls_unusable") == 1
        trusted.write_text((CERTIFICATES / "second.crt").read_text())
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 502
        trusted.write_text(first)
        assert (await raw_request(edge.url, post(CHAT, BODY))).status == 200
