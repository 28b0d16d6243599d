"""Regret on a whole gateway: judged by the recorder, of shadows too, and added up by a script from the events."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.stack import Stack, StackFactory

ROOT: Final = Path(__file__).resolve().parents[2]
SCRIPT: Final = ROOT / "examples" / "regret_sums.py"
REQUESTS: Final = 160
CLIENTS: Final = 3
SCHEDULING: Final[dict[str, Any]] = {
    "default": {
        "handler": {"use": "shadow", "primary": "default"},
        "profiles": {"default": {}, "by-chance": {"scorers": [], "picker": {"use": "random"}}},
    }
}

pytestmark = pytest.mark.timeout(480)


async def _send(stack: Stack, count: int) -> None:
    """Streamed requests with prompts of several lengths, no two of which begin alike."""
    async with aiohttp.ClientSession() as http:
        left = iter(range(count))

        async def client() -> None:
            for number in left:
                words = f"{number} once upon a time there was a pointsman. " * (20 + number % 7 * 40)
                body = {"model": "llama-3.1-8b", "prompt": words, "max_tokens": 9 + number % 5, "stream": True}
                headers = {"x-request-id": f"regret-{number}"}

                async def once(body: object = body, headers: Mapping[str, str] = headers) -> tuple[int]:
                    async with http.post(f"{stack.door}/v1/completions", json=body, headers=headers) as answer:
                        await answer.read()
                        return (answer.status,)

                assert await answered(once) == (200,)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))


async def _rows(stack: Stack, *options: str) -> list[dict[str, Any]]:
    code, output = await stack.command("regret", "--json", *options)
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.mark.requirement("REGRET-1")
async def test_sums_of_regret_are_those_of_the_events(stacks: StackFactory, processes: Processes) -> None:
    settings = {"POINTSMAN_JUDGE": "true"}
    changes = {"scheduling": SCHEDULING}
    async with stacks.start(replicas={"recorder": 1}, speedup=0.5, settings=settings, changes=changes) as stack:
        await _send(stack, REQUESTS)

        async def judged() -> list[dict[str, Any]]:
            rows = await _rows(stack, "--by", "profile")
            # The first ones teach the judge how fast the engines are.
            assert len(rows) == 2, rows
            assert min(row["judged"] for row in rows) > REQUESTS // 3, rows
            return rows

        # The recorder steps back where others have work.
        found: list[dict[str, Any]] = await eventually(judged, timeout=180)
        rows = {row["profile"]: row for row in found}
        assert rows["default"]["judged"] == rows["by-chance"]["judged"]
        assert rows["default"]["regret_us"] < rows["by-chance"]["regret_us"]

        async def agree() -> bool:
            before = await _rows(stack)
            script = processes.start_command([sys.executable, str(SCRIPT)], env={"POINTSMAN_NATS_URL": stack.nats.url})
            assert await script.ended(60) == 0, script.log_text()
            lines = [json.loads(line) for line in script.log_text().splitlines()]
            return lines == before == await _rows(stack)

        await eventually(agree, timeout=180)
        code, output = await stack.command("explain", f"regret-{REQUESTS - 1}")
        assert code == 0
        assert "regret" in output
