"""Requests that wait for their engine at a scheduler that dies."""

import asyncio
import random
from typing import Final

import aiohttp
import pytest
from pydantic import JsonValue

from pointsman_contracts.scheduling import Reservations
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.observer import observing
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.stack import Stack, StackFactory

pytestmark = pytest.mark.timeout(240)

SCHEDULERS = 3
LESSONS, BURST = 60, 90
PATIENT: Final[dict[str, JsonValue]] = {"edge": {"silent_wait": "30s"}}
"""A busy machine may keep every scheduler silent for a while."""


def prompt(dice: random.Random) -> str:
    """One that no engine knows."""
    return " ".join(str(dice.randrange(10**5)) for _ in range(700))


async def ask(http: aiohttp.ClientSession, stack: Stack, dice: random.Random) -> tuple[int, str]:
    body = {"model": "llama-3.1-8b", "prompt": prompt(dice), "max_tokens": 4, "stream": True}
    async with http.post(f"{stack.door}/v1/completions", json=body) as answer:
        return answer.status, await answer.text()


async def test_requests_that_wait_at_a_scheduler_that_is_killed_are_each_answered_once(stacks: StackFactory) -> None:
    dice, replicas = random.Random(1), {"scheduler": SCHEDULERS}
    async with (
        stacks.start(replicas=replicas, engines=1, speedup=1.0, hop_budget=None, changes=PATIENT) as stack,
        observing(stack.nats.url) as observer,
        aiohttp.ClientSession() as http,
    ):
        reports = observer.listen(Reservations, ANY)
        # The schedulers learn how long the engine takes; until then nothing waits at them.
        for _ in range(LESSONS):
            status, _ = await ask(http, stack, dice)
            assert status == 200
        running = [asyncio.create_task(ask(http, stack, dice)) for _ in range(BURST)]

        def holding() -> ServiceProcess | None:
            """A scheduler at which requests wait. A process id is part of the name that an instance has by itself."""
            last = {report.scheduler: report.unbound for report in reports if report.unbound is not None}
            names = [name for name, unbound in last.items() if unbound]
            return next((p for p in stack.services["scheduler"] for name in names if f"-{p.pid}-" in name), None)

        (await eventually(holding)).kill()
        answers = await asyncio.gather(*running)
        assert [status for status, _ in answers] == [200] * BURST
        assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)
        assert await stack.engines[0].metric("vllm:request_success_total") == LESSONS + BURST
