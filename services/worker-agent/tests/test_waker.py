"""An agent wakes its engine when it is ordered to, once at a time, and believes nothing but that the engine serves."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, cast

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.demand import LONGEST_PAUSE_S, PAUSE_S, WakeOrder
from pointsman_engines.client import EngineClient
from pointsman_engines.drain import Drain
from pointsman_engines.reading import Reading
from pointsman_engines.speaker import EngineSpeaker
from pointsman_engines.status import EngineStatus
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received, Script
from pointsman_worker_agent.domain.wake_pauses import SETTLED_S, WakePauses
from pointsman_worker_agent.waker import EngineWaker

ASLEEP: Final = EngineStatus(reachable=True, reason="", asleep=True, boot_id="b1", reading=Reading(0, 0, asleep=True))
AWAKE: Final = replace(ASLEEP, asleep=False, reading=Reading(0, 0))


class Speaker:
    """The part of an `EngineSpeaker` that a waker uses. The engine answers by HTTP; the test sets its status."""

    def __init__(self, client: EngineClient, url: str) -> None:
        self.status = ASLEEP
        self.drain: Drain | None = None
        self.worker = type("Worker", (), {"url": url})
        self.failures: list[str] = []
        self.asked = 0
        self._client = client

    async def wake_engine(self, within_s: float) -> None:
        self.asked += 1
        await self._client.wake_up(timeout=within_s)

    def report_wake(self, failed: str) -> None:
        self.failures.append(failed)


class Agent:
    def __init__(self, engine: FakeEngine, speaker: Speaker) -> None:
        self.engine, self.speaker = engine, speaker
        self.registry = CollectorRegistry()
        self.waker = EngineWaker(cast("EngineSpeaker", speaker), self.registry)

    def order(self, within_ms: int = 300, boot_id: str = "b1") -> None:
        self.waker.take_order(WakeOrder(boot_id=boot_id, within_ms=within_ms))

    def count(self, outcome: str) -> float:
        return self.registry.get_sample_value("pointsman_engine_wakes_total", {"outcome": outcome}) or 0.0

    async def failure(self) -> str:
        await eventually(lambda: self.count("failed") == 1)
        return self.speaker.failures[-1]


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with FakeEngine() as engine, aiohttp.ClientSession() as session:
        agent = Agent(engine, Speaker(EngineClient(engine.url, session=session), engine.url))
        yield agent
        await agent.waker.close()


def answers(status: int) -> Script:
    async def answer(request: Received) -> None:
        await request.answer(b"", status=status)

    return answer


WELL: Final = answers(200)


async def test_an_engine_that_serves_afterwards_was_woken_however_often_that_was_ordered(agent: Agent) -> None:
    agent.engine.pages["/wake_up"] = WELL
    for _ in range(3):
        agent.order(within_ms=60_000)
    await eventually(lambda: agent.speaker.asked == 1)
    agent.speaker.status = AWAKE
    await eventually(lambda: agent.count("woken") == 1)
    assert (agent.speaker.asked, agent.count("failed"), agent.speaker.failures) == (1, 0, [""])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (answers(404), "/wake_up answers 404: is VLLM_SERVER_DEV_MODE=1 set?"),
        (answers(500), "/wake_up answers 500"),
        (WELL, "/wake_up answered 200, and the engine is asleep after 0.3 s"),
    ],
    ids=["no dev mode", "it fails", "200 without waking"],
)
async def test_an_engine_that_does_not_wake_is_reported_with_the_reason(
    agent: Agent, script: Script, words: str
) -> None:
    agent.engine.pages["/wake_up"] = script
    agent.order()
    assert await agent.failure() == words
    agent.order()  # ignored: it pauses
    await asyncio.sleep(0)
    assert agent.speaker.asked == 1


async def test_a_wake_that_hangs_ends_with_its_time(agent: Agent) -> None:
    agent.engine.hang()
    agent.order()
    failure = await agent.failure()
    agent.engine.release()
    assert failure.startswith("no answer from /wake_up")


async def test_an_engine_whose_weights_are_lost_is_not_woken(agent: Agent) -> None:
    agent.speaker.status = replace(ASLEEP, reading=Reading(0, 0, asleep=True, discarded=True))
    agent.order()
    assert "level 2" in await agent.failure()
    assert agent.speaker.asked == 0


async def test_an_engine_that_sleeps_again_at_once_is_left_in_peace_for_a_while(agent: Agent) -> None:
    agent.engine.pages["/wake_up"] = WELL
    agent.order(within_ms=60_000)
    await eventually(lambda: agent.speaker.asked == 1)
    agent.speaker.status = AWAKE
    await eventually(lambda: agent.count("woken") == 1)
    agent.speaker.status = ASLEEP
    agent.order()
    assert "slept again" in await agent.failure()
    assert agent.speaker.asked == 1


@pytest.mark.parametrize("why", ["another life", "awake", "draining"])
async def test_an_order_that_does_not_fit_is_ignored(agent: Agent, why: str) -> None:
    if why == "awake":
        agent.speaker.status = AWAKE
    if why == "draining":
        agent.speaker.drain = Drain(why="upgrade")
    agent.order(boot_id="b0" if why == "another life" else "b1")
    await asyncio.sleep(0)
    assert (agent.speaker.asked, agent.speaker.failures) == (0, [])


async def test_an_engine_that_wakes_by_itself_has_no_failure_any_more(agent: Agent) -> None:
    agent.order()
    assert await agent.failure()
    agent.waker.check_engine()
    assert agent.speaker.failures[-1]
    agent.speaker.status = AWAKE
    agent.waker.check_engine()
    assert agent.speaker.failures[-1] == ""


def test_pauses_grow_to_a_bound_and_begin_anew_after_a_wake_that_lasts() -> None:
    pauses, found = WakePauses(), list[float]()
    for _ in range(9):
        pauses.note_failure(100.0)
        found.append(pauses.retry_at - 100.0)
    assert found[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert found[-1] == LONGEST_PAUSE_S
    pauses.note_awake(200.0)
    assert pauses.judge_last(200.0 + SETTLED_S) == ""
    pauses.note_failure(300.0)
    assert pauses.retry_at == 300.0 + PAUSE_S
