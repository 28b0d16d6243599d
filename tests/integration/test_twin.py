"""The twin of a running gateway's flight log: engines fitted and policies compared from what its scheduler wrote."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_simulator.workloads import generate_workload
from pointsman_testing import eventually
from pointsman_testing.stack import POOL, Stack, StackFactory

POINTSMAN: Final = str(Path(sys.executable).with_name("pointsman"))
REQUESTS: Final = 100
RATE: Final = 20.0
SPEEDUP: Final = 4.0

pytestmark = pytest.mark.timeout(600)


async def _send(stack: Stack) -> None:
    """Each request leaves at its time, whatever became of the others."""
    requests = generate_workload("agents", REQUESTS, RATE)
    began = asyncio.get_running_loop().time()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(number: int) -> None:
            request = requests[number]
            words = "".join(f"{name:>256}" for name in request.blocks[: request.prompt_tokens // 64])
            body: dict[str, JsonValue] = {
                "model": "llama-3.1-8b", "prompt": f"{words}{number}", "max_tokens": request.output_tokens,
                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            }  # fmt: skip
            await asyncio.sleep(max(0.0, began + request.arrival_ms / 1000 - asyncio.get_running_loop().time()))
            async with http.post(f"{stack.door}/v1/completions", json=body) as answer:
                await answer.read()
                assert answer.status == 200

        await asyncio.gather(*(one(number) for number in range(REQUESTS)))


async def _write_all(stack: Stack) -> None:
    """Wait until the scheduler has heard how each request ended, and let it end its log."""
    [scheduler] = stack.services["scheduler"]
    async with aiohttp.ClientSession() as http:

        async def none_open() -> bool:
            async with http.get(f"{scheduler.http_url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            open_requests = [line for line in lines if line.startswith("pointsman_scheduler_open_requests")]
            return bool(open_requests) and all(line.endswith(" 0.0") for line in open_requests)

        await eventually(none_open)
    await scheduler.terminate()


@pytest.mark.requirement("TWIN-1")
async def test_a_log_becomes_a_twin_with_a_verdict_and_a_comparison(stacks: StackFactory, tmp_path: Path) -> None:
    changes: dict[str, JsonValue] = {
        "pools": {POOL: {"models": ["llama-3.1-8b", "sql-lora"], "loras": ["sql-lora"], "flight": {"keep": "1GiB"}}}
    }
    settings = {"POINTSMAN_FLIGHT_DIR": str(tmp_path / "flight")}
    async with stacks.start(changes=changes, settings=settings, speedup=SPEEDUP) as stack:
        await _send(stack)
        await _write_all(stack)
    options = ("--seeds", "1", "--policy", "recorded", "--policy", "round-robin")
    command = [POINTSMAN, "simulate", "--from", "flight", "--out", "twin", *options]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    text = out.decode()
    data: dict[str, Any] = json.loads((tmp_path / "twin" / "twin.json").read_text())
    # Whether the twin is trusted depends on how evenly this machine ran.
    assert process.returncode == (0 if data["trusted"] else 1), err.decode()
    assert ("Verdict: trust" in text) == data["trusted"]
    assert ("Verdict: don't trust" in text) != data["trusted"]
    assert data["requests"] == REQUESTS
    assert data["policy"] == "default"
    assert [policy["policy"] for policy in data["policies"]] == ["recorded", "round-robin"]
    assert set(data["engines"]) == {"engine-1", "engine-2"}
    assert all(engine["num_blocks"] * engine["block_size"] == 1_048_576 for engine in data["engines"].values())
    assert {check["how"] for check in data["checks"]} == {"the engines", "the policy"}
    # Half of the requests; without those of the first 15 % of the time where the log began after an engine registered.
    assert all(check["requests"] > 0.35 * REQUESTS for check in data["checks"]), data["checks"]
    assert max(len(line) for line in text.splitlines() if not line.startswith("saved")) <= 80
    assert (tmp_path / "twin" / "twin.png").read_bytes().startswith(b"\x89PNG")
