"""The engine behind HTTP, seen by the official client and by raw sockets, in a process of its own."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pointsman_testing import Processes, ServiceProcess, eventually

SERVED = ("--model", "m", "--lora", "sql", "--speedup", "20", "--blocks", "2048", "--name", "e1")


@dataclass
class RunningEngine:
    process: ServiceProcess
    url: str
    admin: str
    http: aiohttp.ClientSession
    client: openai.AsyncOpenAI

    async def state(self) -> dict[str, float]:
        async with self.http.get(f"{self.admin}/state") as response:
            return await response.json()

    async def set_faults(self, *faults: str) -> None:
        async with self.http.put(f"{self.admin}/faults", json={"faults": faults}) as response:
            assert response.status == 200, await response.text()

    async def metric(self, name: str, **labels: str) -> float:
        async with self.http.get(f"{self.url}/metrics") as response:
            text = await response.text()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no {name} with {labels} in\n{text}")

    def post(self, path: str, body: object) -> Awaitable[aiohttp.ClientResponse]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(f"{self.url}{path}", data=data)


Starter = Callable[..., Awaitable[RunningEngine]]


@pytest.fixture
async def start(processes: Processes, tmp_path: Path) -> AsyncIterator[Starter]:
    closing: list[Callable[[], Awaitable[None]]] = []

    async def started(*options: str) -> RunningEngine:
        ports = tmp_path / f"port-{len(closing)}", tmp_path / f"admin-{len(closing)}"
        files = ("--port-file", str(ports[0]), "--admin-port", "0", "--admin-port-file", str(ports[1]))
        process = processes.fork("pointsman-simulator", "serve", *SERVED, *files, *options)
        await eventually(lambda: ports[0].exists() or process.returncode is not None)
        assert process.returncode is None, process.log_text()
        url, admin = (f"http://127.0.0.1:{path.read_text().strip()}" for path in ports)
        http = aiohttp.ClientSession()
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        closing.extend([http.close, client.close])
        return RunningEngine(process, url, admin, http, client)

    yield started
    for close in closing:
        await close()


async def read_until_cut(response: aiohttp.ClientResponse) -> bytes:
    received = b""
    try:
        async for part in response.content:
            received += part
    except aiohttp.ClientPayloadError:
        return received
    raise AssertionError("the answer ended in good order")


async def test_the_openai_client_completes_streams_embeds_and_lists_models(start: Starter) -> None:
    engine = await start()
    client = engine.client
    models = await client.models.list()
    assert [model.id for model in models.data] == ["m", "sql"]

    chat = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hello"}], max_tokens=7
    )
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 7
    assert chat.choices[0].finish_reason == "length"
    text = chat.choices[0].message.content

    stream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == chat.usage.prompt_tokens

    completion = await client.completions.create(model="sql", prompt=["a", "b"], max_tokens=3, n=2)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 12

    embedding = await client.embeddings.create(model="m", input=["a", "b"], dimensions=8)
    assert [len(item.embedding) for item in embedding.data] == [8, 8]


async def test_several_base_models_answer_under_their_names_and_share_no_blocks(start: Starter) -> None:
    engine = await start("--model", "n")
    assert [model.id for model in (await engine.client.models.list()).data] == ["m", "n", "sql"]
    for name in ("m", "n"):
        completion = await engine.client.completions.create(model=name, prompt="a" * 2000, max_tokens=2)
        assert completion.model == name
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        assert completion.usage.prompt_tokens_details.cached_tokens == 0
        assert await engine.metric("vllm:request_success_total", model_name=name, finished_reason="length") == 1
        assert await engine.metric("vllm:time_to_first_token_seconds_count", model_name=name) == 1
    assert await engine.metric("vllm:generation_tokens_total", model_name="m") == 4


async def test_a_repeated_prefix_is_reported_as_cached(start: Starter) -> None:
    engine = await start()
    question = "word " * 400
    first = await engine.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": question}], max_tokens=70
    )
    answer = first.choices[0].message.content
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    second = await engine.client.chat.completions.create(
        model="m",
        messages=[
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "and now?"},
        ],
        max_tokens=2,
    )
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # The blocks of the first prompt (500 tokens) and of most of its answer.
    assert second.usage.prompt_tokens_details.cached_tokens == (500 + 3 + 70) // 64 * 64
    assert await engine.metric("vllm:prefix_cache_hits_total") == 512


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/chat/completions", {"model": "x", "messages": [{"role": "user"}]}, 404, "`x` does not exist"),
        ("/v1/chat/completions", b'{"model": "m"', 400, "not JSON"),
        ("/v1/chat/completions", b'{"model": "m", "n": NaN}', 400, "not JSON"),
        ("/v1/chat/completions", b"[" * 100_000, 400, "not JSON"),
        ("/v1/chat/completions", {"model": "m"}, 400, "messages"),
        ("/v1/chat/completions", {"model": "m", "messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"model": 3, "messages": [{"role": "user"}]}, 400, "model"),
        ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"model": "m", "prompt": ""}, 400, "prompt is empty"),
        ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 10**6}, 400, "maximum context length"),
        ("/v1/completions", {"model": "m", "prompt": "a", "stream_options": {}}, 400, "stream is true"),
        ("/v1/embeddings", {"model": "m", "input": []}, 400, "input is empty"),
        ("/v1/nothing", {}, 404, "Not Found"),
        ("/v1/models", {}, 405, "Method Not Allowed"),
    ],
)
async def test_a_bad_request_gets_an_openai_error_that_says_what_is_wrong(
    start: Starter, path: str, body: object, status: int, says: str
) -> None:
    engine = await start()
    async with await engine.post(path, body) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert says in error["message"]
    async with await engine.post("/v1/completions", {"model": "m", "prompt": "a"}) as response:
        assert response.status == 200


async def test_a_client_that_hangs_up_frees_its_place_long_before_its_answer_would_end(start: Starter) -> None:
    engine = await start("--speedup", "1")
    body = {"model": "m", "prompt": "a", "max_tokens": 20_000, "ignore_eos": True}
    for stream in (True, False):
        before = await engine.metric("vllm:request_success_total", finished_reason="abort")
        request = asyncio.ensure_future(engine.post("/v1/completions", body | {"stream": stream}))

        async def is_running() -> bool:
            return await engine.metric("vllm:num_requests_running") == 1

        await eventually(is_running)
        if stream:
            (await request).close()
        else:
            request.cancel()

        async def is_gone(before: float = before) -> bool:
            aborted = await engine.metric("vllm:request_success_total", finished_reason="abort")
            return aborted == before + 1 and await engine.metric("vllm:num_requests_running") == 0

        await eventually(is_gone)


async def test_metrics_have_the_names_that_collectors_read(start: Starter) -> None:
    engine = await start("--max-loras", "2")
    await engine.client.completions.create(model="m", prompt="a" * 2000, max_tokens=3)
    assert await engine.metric("vllm:num_requests_running", model_name="m") == 0
    assert await engine.metric("vllm:num_requests_waiting", model_name="m") == 0
    assert await engine.metric("vllm:kv_cache_usage_perc") == 0
    assert await engine.metric("vllm:cache_config_info", block_size="64", num_gpu_blocks="2048") == 1
    assert await engine.metric("vllm:lora_requests_info", max_lora="2", running_lora_adapters="") > 1e9
    assert await engine.metric("vllm:prefix_cache_queries_total") == 500
    assert await engine.metric("vllm:generation_tokens_total") == 3
    assert await engine.metric("vllm:time_to_first_token_seconds_count") == 1
    assert await engine.metric("vllm:request_success_total", finished_reason="length") == 1


async def test_running_adapters_are_named_while_they_run(start: Starter) -> None:
    engine = await start("--speedup", "1")
    body = {"model": "sql", "prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with await engine.post("/v1/completions", body):
        await engine.metric("vllm:lora_requests_info", running_lora_adapters="sql")


async def test_faults_come_and_go_at_run_time(start: Starter) -> None:
    engine = await start("--fault", "error=503")
    body = {"model": "m", "prompt": "a", "max_tokens": 8, "stream": True}
    async with await engine.post("/v1/completions", body) as response:
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "injected error 503"
    assert await engine.metric("vllm:num_requests_running") == 0

    await engine.set_faults("cut=3")
    async with await engine.post("/v1/completions", body) as response:
        received = await read_until_cut(response)
    assert received.count(b"data: ") == 3

    await engine.set_faults("stall")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), await engine.post("/v1/completions", body):
            pass
    async with engine.http.get(f"{engine.url}/health") as response:
        assert response.status == 200

    await engine.set_faults("stall-all")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), engine.http.get(f"{engine.url}/health"):
            pass

    await engine.set_faults("refuse")
    with pytest.raises(aiohttp.ClientConnectorError):
        await engine.post("/v1/completions", body)

    await engine.set_faults()
    async with await engine.post("/v1/completions", body) as response:
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_dying_engine_sends_its_tokens_and_ends(start: Starter) -> None:
    engine = await start("--fault", "die=5")
    body = {"model": "m", "prompt": "a", "max_tokens": 8, "stream": True}
    async with await engine.post("/v1/completions", body) as response:
        received = await read_until_cut(response)
    assert received.count(b"data: ") == 5
    await eventually(lambda: engine.process.returncode == 1)


async def test_sigterm_lets_open_answers_finish_and_takes_no_new_ones(start: Starter) -> None:
    engine = await start("--speedup", "4")
    body = {"model": "m", "prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    async with await engine.post("/v1/completions", body) as response:
        await response.content.readline()
        engine.process.signal(signal.SIGTERM)

        async def refused() -> bool:
            try:
                async with engine.http.get(f"{engine.url}/health", headers={"connection": "close"}) as health:
                    return health.status == 503
            except aiohttp.ClientConnectorError:
                return True

        await eventually(refused)
        rest = await response.read()
    assert rest.count(b"data: ") == 300 - 1 + 2
    assert rest.endswith(b"data: [DONE]\n\n")
    await eventually(lambda: engine.process.returncode == 0)


async def test_a_key_is_asked_for_when_one_is_set(start: Starter) -> None:
    engine = await start("--api-key", "secret")
    with pytest.raises(openai.AuthenticationError):
        await engine.client.models.list()
    allowed = engine.client.with_options(api_key="secret")
    assert (await allowed.models.list()).data


async def test_a_wrong_option_ends_the_command_with_a_message(processes: Processes) -> None:
    process = processes.start("pointsman-simulator", "serve", "--fault", "explode")
    await eventually(lambda: process.returncode is not None)
    assert process.returncode == 2
    assert "unknown fault 'explode'" in process.log_text()


async def test_a_sleeping_engine_answers_once_it_is_awake_in_all_its_parts(start: Starter) -> None:
    engine = await start("--enable-sleep-mode")
    state = {"engine": "0", "model_name": "m"}

    async def is_sleeping() -> bool:
        async with engine.http.get(f"{engine.url}/is_sleeping") as answer:
            return (await answer.json())["is_sleeping"]

    async with await engine.post("/sleep?level=1", b"") as answer:
        assert answer.status == 200
    assert await is_sleeping()
    assert await engine.metric("vllm:engine_sleep_state", sleep_state="awake", **state) == 0
    assert await engine.metric("vllm:engine_sleep_state", sleep_state="weights_offloaded", **state) == 1
    body = {"model": "m", "prompt": "Hello", "max_tokens": 2}
    asking = asyncio.ensure_future(engine.post("/v1/completions", body))
    await eventually(lambda: _is_open(engine))
    async with await engine.post("/wake_up?tags=weights", b""):
        pass
    assert await is_sleeping()
    assert not asking.done()
    async with await engine.post("/wake_up?tags=kv_cache", b""):
        pass
    assert not await is_sleeping()
    async with await asking as answer:
        assert answer.status == 200
    assert await engine.metric("vllm:engine_sleep_state", sleep_state="awake", **state) == 1


async def test_an_engine_without_sleep_mode_has_no_such_paths(start: Starter) -> None:
    engine = await start()
    async with await engine.post("/wake_up", b"") as answer:
        assert answer.status == 404


async def _is_open(engine: RunningEngine) -> bool:
    return (await engine.state())["open_requests"] > 0
