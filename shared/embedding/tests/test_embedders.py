"""Embedders: a real model in a folder, a service with OpenAI's API, and what happens when there is neither."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pointsman_core.config import Cache, ConfigError, load
from pointsman_embedding.embedder import LONGEST, EmbedderUnavailable
from pointsman_embedding.embedders import Embedders, LexicalEmbedder
from pointsman_embedding.endpoint_embedder import EndpointEmbedder
from pointsman_testing.name_resolution import leads_to


class Service:
    """Answers as a test says."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[tuple[str | None, object]] = []
        self.answer: object = {"data": [{"embedding": [3.0, 4.0]}]}
        self.status = 200
        self.hangs = False
        self.location = ""

    async def embed(self, request: web.Request) -> web.Response:
        self.asked.append((request.headers.get("authorization"), await request.json()))
        if self.hangs:
            await asyncio.Event().wait()
        return web.json_response(self.answer, status=self.status, headers={"location": self.location})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    app = web.Application()
    app.router.add_post("/v1/embeddings", made.embed)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.01)
    made.url = str(server.make_url("/v1"))
    yield made
    await server.close()


async def test_a_service_is_asked_in_openais_words_with_the_key_that_is_referred_to(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBEDDINGS_KEY", " sk-1 \n")
    embedder = EndpointEmbedder(service.url, "e5", "env:EMBEDDINGS_KEY", 5.0)
    vector = await embedder.embed("hello")
    assert vector is not None
    assert vector.tolist() == pytest.approx([0.6, 0.8])
    assert service.asked == [("Bearer sk-1", {"model": "e5", "input": "hello", "encoding_format": "float"})]
    assert await embedder.embed("x" * 5000) is None
    await embedder.close()


async def test_a_service_that_fails_is_logged_without_the_question(service: Service) -> None:
    embedder = EndpointEmbedder(service.url, "e5", None, 5.0)
    service.status = 503
    with pytest.raises(EmbedderUnavailable, match="answers 503"):
        await embedder.embed("secret")
    service.status, service.answer = 200, {"data": []}
    with pytest.raises(EmbedderUnavailable, match="no embedding"):
        await embedder.embed("secret")
    await embedder.close()
    hurried = EndpointEmbedder(service.url, "e5", None, 0.05)
    service.hangs = True
    with pytest.raises(EmbedderUnavailable, match="doesn't answer") as error:
        await hurried.embed("secret")
    assert "secret" not in str(error.value)
    await hurried.close()
    with pytest.raises(EmbedderUnavailable, match="env:NOWHERE is empty or missing"):
        await EndpointEmbedder(service.url, "e5", "env:NOWHERE", 1.0).embed("secret")


async def test_a_service_that_redirects_or_leads_to_a_refused_address_is_not_followed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.status, service.location = 307, "/v1/elsewhere"
    embedder = EndpointEmbedder(service.url, "e5", None, 5.0)
    with pytest.raises(EmbedderUnavailable, match="answers 307"):
        await embedder.embed("hello")
    await embedder.close()
    monkeypatch.setattr("socket.getaddrinfo", leads_to("169.254.169.254"))
    embedder = EndpointEmbedder("http://embeddings.example/v1", "e5", None, 5.0)
    with pytest.raises(EmbedderUnavailable) as refused:
        await embedder.embed("hello")
    assert "metadata services are never asked" in str(refused.value.args)
    await embedder.close()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"url": "http://10.0.0.9/v1"}, "`private: true` allows it"),
        ({"url": "http://169.254.169.254/v1", "private": True}, "metadata services are never asked"),
        ({"url": "http://me:secret@e.example/v1"}, "no user and no password"),
    ],
)
def test_a_service_where_none_may_be_is_refused_with_the_configuration(more: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load({"caches": {"a": {"embeddings": {"use": "endpoint", "model": "e5"} | more}}})


async def test_a_model_that_cannot_be_loaded_is_logged_and_tried_again_with_the_next_configuration(
    tmp_path: Path,
) -> None:
    cache = Cache.model_validate({"embeddings": {"use": "onnx", "directory": str(tmp_path)}})
    assert cache.embeddings is not None
    embedders = Embedders("none")
    for _ in range(2):
        with pytest.raises(EmbedderUnavailable, match="neither"):
            await embedders.get(cache.embeddings)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(EmbedderUnavailable, match="neither"):
        await embedders.get(cache.embeddings)
    embedders.prepare([cache.embeddings])
    with pytest.raises(EmbedderUnavailable, match="can't be loaded"):
        await embedders.get(cache.embeddings)
    await embedders.close()
    assert await LexicalEmbedder().embed("!?") is None
    assert await LexicalEmbedder().embed("word " * (LONGEST // 5 + 1)) is None


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ({"embeddings": "onnx"}, "`use: onnx` needs `directory`"),
        ({"embeddings": {"use": "lexical", "url": "http://x/v1"}}, "`url` isn't for `use: lexical`"),
        ({"embeddings": {"use": "endpoint", "url": "ftp://x", "model": "m"}}, "must begin with http"),
        ({"embeddings": {"use": "endpoint", "url": "http://x", "model": "m", "credential": "sk-1"}}, "reference"),
        ({"store": "postgres"}, "`use: postgres` needs `url`"),
        ({"store": {"use": "postgres", "url": "postgres://me:hunter2@x"}}, "reference"),
        ({"per": ["subject"]}, "never shared between tenants"),
        ({"max_bytes": "1KB", "max_answer": "1MB"}, "`max_answer` (1000000) is more than `max_bytes` (1000)"),
        ({"tll": "1h"}, "did you mean 'ttl'?"),
    ],
)
def test_a_cache_that_cannot_be_is_refused_in_words(cache: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({"caches": {"default": cache}})
    assert problem in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_profile_names_caches_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"profiles\.standard\.request\.0: unknown cache 'fsat'; did you mean 'fast'"):
        load({"caches": {"fast": {}}, "profiles": {"standard": {"request": ["semantic-cache/fsat", "scheduler"]}}})
    assert load({"caches": {"fast": {}}}).caches["fast"].per == ("tenant",)
