"""`pointsman doctor --engine`: one table about one engine."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.inference import ModelConfig
from pointsman_simulator.server import ServerConfig, SimulatedEngine
from pointsman_simulator.timing import Timing
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received

POINTSMAN = str(Path(sys.executable).with_name("pointsman"))


async def doctor(url: str, *options: str) -> tuple[int, str]:
    command = [POINTSMAN, "doctor", "--engine", url, *options]
    environment = {**os.environ, "COLUMNS": "80"}
    ran = await asyncio.to_thread(
        subprocess.run, command, check=False, capture_output=True, text=True, env=environment, timeout=120
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    config = ServerConfig(ModelConfig(("m",)), EngineConfig(timing=Timing(speedup=50)))
    started = SimulatedEngine(config)
    await started.start()
    yield started
    await started.stop()


async def test_each_feature_is_supported_or_missing_in_80_columns(engine: SimulatedEngine) -> None:
    code, text = await doctor(f"http://127.0.0.1:{engine.port}/v1")
    assert code == 0, text
    assert max(map(len, text.splitlines())) <= 80
    rows = {line[:30].strip(): line for line in text.splitlines()}
    assert "supported" in rows["Chat, streamed, with usage"]
    assert "supported" in rows["Metric: running requests"]
    assert "vllm at http://127.0.0.1" in text
    assert "0 different" in text


async def test_differences_are_named_and_make_the_status_1() -> None:
    async def no_metrics(request: Received) -> None:
        await request.answer(b"", status=404)

    # Metrics that stand still take ten seconds each.
    async with FakeEngine(pages={"/metrics": no_metrics, "/metrics/": no_metrics}) as engine:
        code, text = await doctor(engine.url)
    assert code == 1
    row = next(line for line in text.splitlines() if line.startswith("Chat, streamed"))
    assert "different" in row
    assert "the stream is of type" in row


async def test_an_engine_that_is_not_there_is_one_sentence() -> None:
    code, text = await doctor("http://127.0.0.1:1")
    assert code == 1
    assert "can't be asked for its models" in text
    assert "Traceback" not in text
