"""APIs that pass as they are, requests without a body or a model, health, and web pages' scripts."""

import json

import pytest

from pointsman_contracts.journey import BodyEdit, PreprocessRequest, Target
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.response import ResponseCompleted
from pointsman_edge.deciding.decider import StagesMissing
from pointsman_testing import builders, eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\0\xff\r\n--b--\r\n'
)
RERANKED = b'{"results": [{"index": 0}], "usage": {"prompt_tokens": 9, "total_tokens": 9}}'


async def ask(edge: EdgeUnderTest, method: str, path: str, *headers: str) -> RawResponse:
    """A request without a body."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", *headers, "", ""]
    return await raw_request(edge.url, "\r\n".join(lines).encode())


def form(body: bytes, path: str = "/v1/audio/transcriptions") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: multipart/form-data; boundary=b\r\n\r\n" + body


async def test_a_request_that_passes_reaches_the_engine_with_its_query_and_its_usage_is_counted(
    start_edge: StartEdge,
) -> None:
    async def rerank(request: Received) -> None:
        await request.answer(RERANKED)

    async with ScriptedEngine(rerank) as engine:
        edge = await start_edge(engine.url)
        body = b'{"model":"llama-8b", "query":"q","documents":["a"]}'
        answer = await raw_request(edge.url, post("/v1/rerank?top=1", body))
        assert (answer.status, answer.body) == (200, RERANKED)
    [received] = engine.received
    assert (received.method, received.path, received.body) == ("POST", "/v1/rerank?top=1", body)
    await eventually(lambda: edge.events.of(ResponseCompleted))
    [done] = edge.events.of(ResponseCompleted)
    assert done.usage is not None
    assert (done.api, done.outcome, done.usage.prompt_tokens) == ("rerank", "ok", 9)


async def test_a_form_passes_untouched_and_an_alias_changes_the_models_name_alone(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        assert (await raw_request(edge.url, form(FORM % b"llama-8b"))).status == 200
        edge.stages.reply = lambda request: builders.decision(
            request.request_id,
            endpoints=[ChosenEndpoint(worker="w", url=engine.url)],
            target=Target(model="whisper-large", pool="llama-8b"),
            body=(BodyEdit(field="model", value="whisper-large"),),
        )
        assert (await raw_request(edge.url, form(FORM % b"speech"))).status == 200
    assert [request.body for request in engine.received] == [FORM % b"llama-8b", FORM % b"whisper-large"]
    assert engine.received[0].header("content-type") == "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("path", "sent", "status", "code"),
    [
        ("/v1/audio/transcriptions", post("/v1/audio/transcriptions", b"{}"), 415, "unsupported_content_type"),
        ("/v1/rerank", form(FORM, "/v1/rerank"), 415, "unsupported_content_type"),
        ("/v1/responses/r/cancel", post("/v1/responses/r/cancel", b"{}"), 400, "unexpected_body"),
    ],
)
async def test_a_body_of_another_kind_is_refused(
    start_edge: StartEdge, path: str, sent: bytes, status: int, code: str
) -> None:
    edge = await start_edge("http://127.0.0.1:9")
    answer = await raw_request(edge.url, sent)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
    assert edge.stages.asked == []


async def test_a_pool_in_the_path_is_for_the_stages_and_not_for_the_engine(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        assert (await ask(edge, "GET", "/pools/llama-8b/tokenizer_info/?x=1")).status == 200
    [(request, body, _)] = edge.stages.asked
    assert (request.method, request.path, body) == ("GET", "/pools/llama-8b/tokenizer_info", b"")
    assert (engine.received[0].method, engine.received[0].path) == ("GET", "/tokenizer_info?x=1")


async def test_alone_the_edge_reads_the_model_of_a_form_and_of_a_pools_path(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(config={"profiles": {"standard": {"static": "allow"}}})
        edge.stages.failure = StagesMissing("no live scheduler")
        view = WorkerView(worker="w", url=engine.url)
        edge.hear(PoolSnapshot(pool="llama-8b", source="c", sequence=1, at_ms=1, workers=(view,)))
        assert (await raw_request(edge.url, form(FORM % b"llama-8b"))).status == 200
        assert (await raw_request(edge.url, post("/pools/llama-8b/generate", b'{"text":"a"}'))).status == 200
        assert (await raw_request(edge.url, form(FORM % b"other"))).status == 404
    assert [request.path for request in engine.received] == ["/v1/audio/transcriptions", "/generate"]
    assert engine.received[1].body == b'{"text":"a"}'


async def test_a_sound_passes_as_it_arrives_and_as_it_is(start_edge: StartEdge) -> None:
    sound = bytes(range(256)) * 4

    async def speak(request: Received) -> None:
        await request.begin_stream("audio/mpeg")
        await request.chunk(sound)
        await request.chunk(b'"model":"whisper"')
        await request.chunk(b"")

    def renamed(request: PreprocessRequest) -> Decision:
        endpoint = ChosenEndpoint(worker="w", url=engine.url)
        return builders.decision(
            request.request_id, endpoints=[endpoint], target=Target(model="whisper", pool="llama-8b")
        )

    async with ScriptedEngine(speak) as engine:
        edge = await start_edge(engine.url)
        edge.stages.reply = renamed
        answer = await raw_request(edge.url, post("/v1/audio/speech", b'{"model":"llama-8b","input":"a"}'))
    assert (answer.status, answer.header("content-type")) == (200, "audio/mpeg")
    assert answer.body == sound + b'"model":"whisper"'


async def test_health_and_version_answer_with_and_without_a_slash_at_the_end(start_edge: StartEdge) -> None:
    edge = await start_edge("http://127.0.0.1:9")
    for path in ("/health", "/health/", "/ready/"):
        answer = await ask(edge, "GET", path)
        assert (answer.status, json.loads(answer.body)["ready"]) == (200, True)
    for path in ("/version", "/version/"):
        assert set(json.loads((await ask(edge, "GET", path)).body)) == {"version"}
    assert (await ask(edge, "GET", "/v1/models/")).status == 200
    assert (await ask(edge, "POST", "/version")).status == 405


async def test_a_slash_at_the_end_of_an_apis_path_changes_nothing(start_edge: StartEdge) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post("/v1/chat/completions/", b'{"model":"llama-8b","messages":[]}'))
        assert answer.status == 200
    assert engine.received[0].path == edge.stages.asked[0][0].path == "/v1/chat/completions"


PAGE, OTHER = "origin: https://chat.example.com", "origin: https://evil.example.com"
PREFLIGHT = ("access-control-request-method: POST", "access-control-request-headers: authorization, content-type")


async def test_scripts_of_web_pages_are_let_in_only_where_the_configuration_says_so(start_edge: StartEdge) -> None:
    closed = await start_edge("http://127.0.0.1:9")
    assert (await ask(closed, "OPTIONS", "/v1/chat/completions", PAGE, *PREFLIGHT)).status == 405
    cors = {"edge": {"cors": {"origins": ["https://chat.example.com"], "max_age": "5m"}}}
    edge = await start_edge("http://127.0.0.1:9", config=cors)
    allowed = await ask(edge, "OPTIONS", "/v1/chat/completions", PAGE, *PREFLIGHT)
    assert (allowed.status, allowed.header("access-control-allow-origin")) == (204, "https://chat.example.com")
    assert allowed.header("access-control-allow-headers") == "authorization, content-type"
    assert (allowed.header("access-control-max-age"), allowed.header("vary")) == ("300", "origin")
    assert (await ask(edge, "OPTIONS", "/v1/chat/completions", OTHER, *PREFLIGHT)).status == 405
    for sent, origin in ((PAGE, "https://chat.example.com"), (OTHER, None)):
        answer = await ask(edge, "GET", "/v1/models", sent)
        assert (answer.status, answer.header("access-control-allow-origin")) == (200, origin)
        assert answer.header("vary") == "origin"


async def test_a_response_is_asked_for_at_the_worker_that_made_it(start_edge: StartEdge) -> None:
    async def respond(request: Received) -> None:
        await request.answer(b'{"id":"resp_1","object":"response","status":"completed","model":"llama-8b"}')

    async with ScriptedEngine(respond) as engine:
        edge = await start_edge(engine.url)
        assert (await raw_request(edge.url, post("/v1/responses", b'{"model":"llama-8b","input":"a"}'))).status == 200
        await eventually(lambda: edge.events.of(ResponseCompleted))
        for method, path in (
            ("GET", "/v1/responses/resp_1?include[]=x"),
            ("GET", "/v1/responses/resp_1/input_items"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("DELETE", "/v1/responses/resp_1"),
        ):
            assert (await ask(edge, method, path)).status == 200
        sent = [(request.method, request.path) for request in engine.received[1:]]
    assert sent == [
        ("GET", "/v1/responses/resp_1?include[]=x"), ("GET", "/v1/responses/resp_1/input_items"),
        ("POST", "/v1/responses/resp_1/cancel"), ("DELETE", "/v1/responses/resp_1"),
    ]  # fmt: skip
    for request, body, _ in edge.stages.asked[1:]:
        assert (request.model, request.headers["x-gateway-worker-id"], body) == ("llama-8b", "worker-1", b"")


@pytest.mark.requirement("KSERVE-2")
async def test_the_open_inference_protocol_names_the_model_in_the_path_and_words_errors_as_a_text(
    start_edge: StartEdge,
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        sent = b'{"text_input": "hi", "parameters": {"max_tokens": 3}}'
        assert (await raw_request(edge.url, post("/v2/models/llama-8b/generate", sent))).status == 200
        asked: list[str | None] = []

        def aliased(request: PreprocessRequest) -> Decision:
            asked.append(request.model)
            return builders.decision(
                request.request_id,
                endpoints=[ChosenEndpoint(worker="w", url=engine.url)],
                target=Target(model="org/llama", pool="llama-8b"),
                body=(BodyEdit(field="model", value="org/llama"),),
            )

        edge.stages.reply = aliased
        assert (await raw_request(edge.url, post("/v2/models/alias/generate", sent))).status == 200
        assert [(request.path, request.body) for request in engine.received] == [
            ("/v2/models/llama-8b/generate", sent),
            ("/v2/models/org%2Fllama/generate", sent),
        ]
        assert asked == ["alias"]
        wrong = await raw_request(edge.url, form(FORM, "/v2/models/llama-8b/infer"))
    assert wrong.status == 415
    assert isinstance(json.loads(wrong.body)["error"], str)
