"""Parts die, hang and come back under traffic: no request hangs, and requests that can go on do.

How fast each of these is, in seconds, is measured by `benchmarks/faults`; here only what happens is decided.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.attendance import attending
from pointsman_testing.observer import observing
from pointsman_testing.processes import ServiceProcess
from pointsman_testing.stack import Stack, StackFactory
from pointsman_testing.traffic import Traffic

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(480)]

STAGES = ("preprocessor", "profile-picker", "model-selector", "scheduler")
RATE = 100
BODY = {
    "model": "auto",
    "prompt": "twelve words that all requests share at their very beginning, then end",
    "max_tokens": 2,
}


def traffic(stack: Stack, rate: float = RATE) -> Traffic:
    return Traffic(f"{stack.door}/v1/completions", rate, BODY, timeout=150)


async def ask(http: aiohttp.ClientSession, door: str, body: Mapping[str, JsonValue]) -> tuple[int, str, str]:
    """Status, the request's id, and the answer."""

    async def once() -> tuple[int, str, str]:
        async with http.post(f"{door}/v1/completions", json=body) as answer:
            return answer.status, answer.headers["x-request-id"], await answer.text()

    return await answered(once)


async def flowing(running: Traffic, count: int = 60) -> None:
    """Wait until `count` more requests have been answered with 200."""
    target = running.statuses()[200] + count
    await eventually(lambda: running.statuses()[200] >= target)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doubled(stacks: StackFactory) -> AsyncIterator[Stack]:
    """Two replicas of every stage."""
    async with stacks.start(replicas=dict.fromkeys(STAGES, 2), hop_budget=None) as stack:
        yield stack


@pytest.mark.requirement("STAGE-1", "S1-31", "S1-37", "S1-41")
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.parametrize("stage", STAGES)
async def test_no_request_fails_when_one_of_two_replicas_of_a_stage_is_gone(
    doubled: Stack, stage: str, how: str
) -> None:
    victim = doubled.services[stage][0]
    async with attending(doubled.nats.url) as attendance, traffic(doubled) as running:
        await flowing(running)
        getattr(victim, how)()
        await flowing(running, RATE * 2)
        if how == "kill":
            await doubled.restart(stage, 0)
        else:
            victim.resume()
        await flowing(running, RATE)
    assert running.while_all_ran(running.failed(), attendance, victim.pid) == []


@pytest.mark.requirement("S0-29")
async def test_replacing_every_process_one_by_one_fails_no_request_and_forgets_nothing(doubled: Stack) -> None:
    """The schedulers' knowledge of prompts on engines goes from peer to peer; engines and pools are learnt anew. Which
    engine is best also depends on the other requests: what a decision knew is looked at, not what it chose."""
    known = {"model": "auto", "prompt": "a long prompt that its engine remembers " * 60, "max_tokens": 2}
    async with (
        attending(doubled.nats.url) as attendance,
        observing(doubled.nats.url) as seen,
        traffic(doubled, 50) as running,
        aiohttp.ClientSession() as http,
    ):
        decisions = seen.listen(RequestScheduled, ANY)

        async def decision() -> RequestScheduled:
            status, mine, text = await ask(http, doubled.door, known)
            assert status == 200, text
            return await eventually(lambda: next((d for d in decisions if d.request_id == mine), None))

        [home, *_] = (await decision()).endpoints
        assert _held(await decision(), home) > 400
        for service in (*STAGES, "metrics-collector"):
            for index, process in enumerate(tuple(doubled.services[service])):
                assert await process.terminate() == 0
                await doubled.restart(service, index)
                await flowing(running, 20)
        assert _held(await decision(), home) > 400
    assert running.while_all_ran(running.failed(), attendance) == []


def _held(decision: RequestScheduled, worker: str) -> int:
    """Tokens of the prompt that the worker was believed to hold."""
    candidates = decision.runs[0].candidates
    return candidates.matched_tokens[candidates.workers.index(worker)]


@pytest.mark.requirement("S1-35")
async def test_an_idle_frontend_that_is_killed_takes_nothing_along(doubled: Stack) -> None:
    known = {"model": "auto", "prompt": "a prompt that was answered before " * 60, "max_tokens": 2}
    async with observing(doubled.nats.url) as seen, aiohttp.ClientSession() as http:
        decisions = seen.listen(RequestScheduled, ANY)
        ended = seen.listen(ResponseCompleted, ANY)
        cached: list[int] = []
        for _ in range(2):
            status, mine, text = await ask(http, doubled.door, known)
            assert status == 200, text
            # Until it has said that the answer is over, it isn't idle.
            await eventually(lambda mine=mine: any(end.request_id == mine for end in ended))
            decision = await eventually(lambda mine=mine: next((d for d in decisions if d.request_id == mine), None))
            cached.append(decision.cached_tokens)
            doubled.services["frontend"][0].kill()
            await doubled.restart("frontend", 0)
    assert cached[1] > 300


@pytest.mark.requirement("STAGE-2")
@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.parametrize("stage", STAGES)
async def test_without_a_second_replica_requests_wait_until_it_is_back(single: Stack, stage: str, how: str) -> None:
    victim = single.services[stage][0]
    async with traffic(single, 20) as running:
        await flowing(running, 20)
        getattr(victim, how)()
        gone_at = running.now
        await eventually(lambda: running.now > gone_at + 2.0)
        if how == "kill":
            await single.restart(stage, 0)
        else:
            victim.resume()
        await flowing(running, 40)
    # None is older than `silent_wait`, which is when it would get 503.
    assert running.failed() == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def single(stacks: StackFactory) -> AsyncIterator[Stack]:
    """One replica of everything, a policy that forbids the edge to choose by itself, and time to start a killed replica
    again: a busy machine may take half a minute for it, or for what a test does in two seconds."""
    patient: JsonValue = {"silent_wait": "120s", "decision_timeout": "120s"}
    async with stacks.start(static="deny", hop_budget=None, changes={"edge": patient}) as stack:
        yield stack


@pytest.mark.requirement("BUS-1")
async def test_a_restart_of_the_bus_makes_requests_late_or_503_and_everything_reconnects(single: Stack) -> None:
    async with traffic(single) as running:
        await flowing(running)
        await asyncio.to_thread(single.nats.kill)
        await eventually(lambda: running.statuses()[503] >= 50)
        await asyncio.to_thread(single.nats.start)
        await flowing(running, RATE)
    assert set(running.statuses()) == {200, 503}

    def reconnected(service: ServiceProcess) -> bool:
        words = [line["event"] for line in service.log_lines()]
        told = [word for word in words if word in ("bus_disconnected", "bus_connected")]
        return told[-2:] == ["bus_disconnected", "bus_connected"]

    await eventually(lambda: all(reconnected(service) for service in single.all_services()))


@pytest.mark.requirement("BUS-2")
async def test_the_edge_goes_on_by_itself_while_the_bus_is_gone_if_the_profile_allows_it(stacks: StackFactory) -> None:
    async with stacks.start(static="allow", hop_budget=None) as stack, traffic(stack, 50) as running:
        await flowing(running)
        await asyncio.to_thread(stack.nats.kill)
        frontend = stack.services["frontend"][0]
        await eventually(lambda: any(line["event"] == "bus_disconnected" for line in frontend.log_lines()))
        gone_at = running.now
        await flowing(running, 100)
        await asyncio.to_thread(stack.nats.start)
        await flowing(running, 50)
    # A request that was inside the stages when the bus went may get 503.
    assert [end for end in running.failed() if end.started >= gone_at] == []


@pytest.mark.requirement("ENGINE-1")
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_dead_or_hung_engine_gets_no_more_requests(single: Stack, how: str) -> None:
    victim = single.engines[0]
    async with attending(single.nats.url) as attendance, traffic(single, 100) as running:
        await flowing(running)
        getattr(victim.process, how)()
        await eventually(single.state_is(victim, "unreachable" if how == "kill" else "not_ready", "silent"))
        out_at = running.now
        await flowing(running, 100)
        if how == "kill":
            await victim.restart()
        else:
            victim.process.resume()
        await eventually(lambda: any(end.engine == victim.name for end in running.ended[-50:]))
    during = sorted((end for end in running.ended if end.started >= out_at), key=lambda end: end.started)[:50]
    # A scheduler that gets nothing of the machine hears of it later.
    assert all(end.engine != victim.name for end in running.while_all_ran(during, attendance))
    if how == "kill":
        assert running.while_all_ran(running.failed(), attendance) == []


@pytest.mark.requirement("ENGINE-2")
async def test_all_engines_gone_means_an_error_at_once_and_the_first_one_back_serves_again(single: Stack) -> None:
    """Engines that every signal calls gone are tried nevertheless: the client hears what the attempts met."""
    async with traffic(single, 100) as running:
        await flowing(running)
        for engine in single.engines:
            engine.process.kill()
        for engine in single.engines:
            await eventually(single.state_is(engine, "unreachable", "silent"))
        all_gone_at = running.now
        await eventually(lambda: running.statuses(all_gone_at)[502] >= 50)
        none_back_at = running.now
        await single.engines[1].restart()
        await flowing(running, 100)
        await single.engines[0].restart()
    assert set(running.statuses()) <= {200, 502, 503}
    meanwhile = [end for end in running.ended if all_gone_at <= end.started and end.started + end.took < none_back_at]
    assert all("engine_failed" in end.problem for end in meanwhile if end.status == 502)
    assert 200 not in {end.status for end in meanwhile}
    assert all(end.retry_after for end in running.ended if end.status == 503)


@pytest.mark.requirement("ENGINE-3")
async def test_a_stream_that_is_cut_off_ends_with_an_error_event(single: Stack) -> None:
    single.engines[0].process.kill()
    await eventually(single.state_is(single.engines[0], "unreachable", "silent"))
    await single.engines[1].set_faults("cut=5")
    body = {"model": "llama-3.1-8b", "prompt": "x", "max_tokens": 50, "stream": True, "ignore_eos": True}
    try:
        async with aiohttp.ClientSession() as http:
            _, _, text = await ask(http, single.door, body)
    finally:
        await single.engines[1].set_faults()
        await single.engines[0].restart()
    events = [line for line in text.splitlines() if line.startswith("data:")]
    assert len(events) >= 5
    assert '"error"' in events[-1]
    assert "[DONE]" not in text


@pytest.mark.requirement("ENGINE-4")
async def test_a_request_that_has_no_byte_yet_goes_to_another_engine(single: Stack) -> None:
    await single.engines[0].set_faults("error=503")
    try:
        async with attending(single.nats.url) as attendance, traffic(single, 50) as running:
            await flowing(running, 100)
    finally:
        await single.engines[0].set_faults()
    assert running.while_all_ran(running.failed(), attendance) == []
