"""The pages of engines with certificates of a private authority."""

import ssl
from pathlib import Path

import pytest

from pointsman_core.config import EngineTls
from pointsman_engines.client import EngineClient, PageUnread, engine_session
from pointsman_testing.scripted_engine import Received, ScriptedEngine

CERTIFICATES = Path(__file__).parents[3] / "services/frontend/tests/certificates"
FIRST = str(CERTIFICATES / "first.crt")


async def models(request: Received) -> None:
    """An engine's list of models."""
    await request.answer(b'{"data":[]}')


@pytest.mark.parametrize("tls", [EngineTls(ca=FIRST), EngineTls(ca=FIRST, server_name="localhost")])
async def test_the_pages_of_an_engine_of_a_private_authority_are_read(tls: EngineTls) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FIRST, CERTIFICATES / "first.key")
    async with ScriptedEngine(models, tls=context) as engine, engine_session() as session:
        assert await EngineClient(engine.url, session=session, tls=tls).models(timeout=10) == b'{"data":[]}'


@pytest.mark.parametrize("tls", [None, EngineTls(ca=FIRST, server_name="other.test"), EngineTls(ca="/nowhere.pem")])
async def test_a_certificate_that_cant_be_checked_is_the_reason_that_operators_read(tls: EngineTls | None) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(FIRST, CERTIFICATES / "first.key")
    async with ScriptedEngine(models, tls=context) as engine, engine_session() as session:
        with pytest.raises(PageUnread, match="`tls` of its pool"):
            await EngineClient(engine.url, session=session, tls=tls).models(timeout=10)
