"""The fixed backend answers what a benchmark client and a gateway need."""

from pathlib import Path

import aiohttp
import openai
import pytest

from pointsman_testing import Processes, eventually


@pytest.mark.parametrize("options", [("fixed",), ("fixed", "--interval-ms", "1"), ("serve", "--instant")])
async def test_the_fixed_backend_serves_the_openai_client(
    processes: Processes, tmp_path: Path, options: tuple[str, ...]
) -> None:
    port_file = tmp_path / "port"
    command = (*options, "--model", "m", "--tokens", "5", "--port-file", str(port_file))
    processes.start("pointsman-simulator", *command)
    await eventually(port_file.exists)
    url = f"http://127.0.0.1:{port_file.read_text().strip()}"
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in (await client.models.list()).data] == ["m"]
        whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert whole.choices[0].message.content == " the points are set for"
        stream = await client.completions.create(model="m", prompt="a" * 100_000, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == " the points are set for"
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/metrics") as response:
            assert "vllm:num_requests_running" in await response.text()
        async with http.get(f"{url}/nothing") as response:
            assert response.status == 404
