"""The agent as a process beside a simulated engine that is stopped, killed and started again."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_testing import NatsServer, Processes, eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import POOL, EngineProcess


@pytest.fixture
async def engine(processes: Processes, tmp_path: Path) -> EngineProcess:
    started = EngineProcess("engine-1", processes, tmp_path, speedup=20.0)
    await started.start()
    return started


async def reasons(url: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/ready") as answer:
        return (await answer.json())["reasons"]


@pytest.mark.requirement("S1-8", "S1-9")
async def test_an_engine_is_registered_and_its_load_is_published(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen, aiohttp.ClientSession() as http:
        await seen.make_workers_bucket()
        loads = seen.listen(WorkerLoad, POOL, "engine-1")
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        await engine.agent.wait_ready()
        # An agent is ready once its engine is announced; JetStream may store the entry later.
        entry = await eventually(lambda: seen.entry(WorkerRegistration, POOL, "engine-1"))
        assert (entry.url, entry.engine, entry.models, entry.loras) == (
            engine.url,
            "vllm",
            ("llama-3.1-8b",),
            ("sql-lora",),
        )
        assert entry.block_tokens
        assert entry.kv_blocks
        assert entry.max_context
        await eventually(lambda: loads and loads[-1].state == "serving")
        assert loads[-1].boot_id == entry.boot_id

        prompt = {"model": "llama-3.1-8b", "prompt": "x " * 500, "max_tokens": 40_000, "ignore_eos": True, "n": 3}
        answer = asyncio.create_task(http.post(f"{engine.url}/v1/completions", json=prompt))
        await eventually(lambda: any(load.running == 3 and load.kv_usage > 0 for load in loads))
        # It lasts until it was seen, however late the agent looks.
        answer.cancel()
        await asyncio.wait([answer])
        await eventually(lambda: loads[-1].running == 0)
        assert [load.sequence for load in loads] == list(range(1, len(loads) + 1))


async def test_a_stopped_engine_is_not_ready_and_comes_back_as_it_was(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        loads = seen.listen(WorkerLoad, ANY, ANY)
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        url = await engine.agent.wait_ready()
        await eventually(lambda: loads and loads[-1].state == "serving")
        boot_id = loads[-1].boot_id
        engine.process.pause()
        await eventually(lambda: loads[-1].state == "not_ready")
        assert "isn't ready: no answer from /" in (await reasons(url))["engine"]
        # Its health page may be given up earlier than its metrics page.
        await eventually(lambda: loads[-1].load_unknown)
        engine.process.resume()
        await eventually(lambda: loads[-1].state == "serving")
        assert {load.boot_id for load in loads} == {boot_id}


async def test_a_killed_engine_is_unreachable_and_comes_back_in_a_new_life(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        await seen.make_workers_bucket()
        loads = seen.listen(WorkerLoad, ANY, ANY)
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        url = await engine.agent.wait_ready()
        await eventually(lambda: loads and loads[-1].state == "serving")
        boot_id = loads[-1].boot_id
        engine.process.kill()
        await eventually(lambda: loads[-1].state == "unreachable")
        assert (await reasons(url))["engine"] == f"engine {engine.url} unreachable: connection refused"
        await engine.restart()
        await eventually(lambda: loads[-1].state == "serving")
        assert loads[-1].boot_id != boot_id

        async def registered_anew() -> bool:
            entry = await seen.entry(WorkerRegistration, POOL, "engine-1")
            return entry is not None and entry.boot_id == loads[-1].boot_id

        await eventually(registered_anew)


async def test_an_engine_that_is_not_there_at_the_start_is_waited_for(
    own_nats_server: NatsServer, processes: Processes, engine: EngineProcess
) -> None:
    engine.process.kill()
    agent = processes.start(
        "pointsman-worker-agent",
        env={
            "POINTSMAN_NATS_URL": own_nats_server.url,
            "POINTSMAN_ENGINE_URL": engine.url,
            "POINTSMAN_POOL": POOL,
            "POINTSMAN_DRAIN_TIMEOUT_S": "1",
        },
    )
    await eventually(lambda: agent.http_url)
    url = agent.http_url or ""

    async def says_why() -> bool:
        return "connection refused" in (await reasons(url)).get("engine", "")

    await eventually(says_why)
    await engine.start()
    await agent.wait_ready()
    assert await agent.terminate() == 0


async def test_an_agent_stores_its_registration_once_a_scheduler_has_made_the_bucket(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        url = await engine.agent.wait_ready()

        async def stored(value: int) -> bool:
            async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
                return f'pointsman_engine_stored{{pool="{POOL}",worker="engine-1"}} {value}.0' in await answer.text()

        await eventually(lambda: "the bucket pm-workers doesn't exist yet" in engine.agent.log_text())
        assert await stored(0)
        await seen.make_workers_bucket()
        await eventually(lambda: seen.entry(WorkerRegistration, POOL, "engine-1"))
        await eventually(lambda: stored(1))


@pytest.mark.requirement("S1-8")
async def test_an_agent_that_gets_sigterm_drains_its_engine_and_leaves(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen, aiohttp.ClientSession() as http:
        await seen.make_workers_bucket()
        loads = seen.listen(WorkerLoad, ANY, ANY)
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        await engine.agent.wait_ready()
        prompt = {"model": "llama-3.1-8b", "prompt": "x", "max_tokens": 40_000, "ignore_eos": True}
        answer = asyncio.create_task(http.post(f"{engine.url}/v1/completions", json=prompt))
        await eventually(lambda: loads and loads[-1].running == 1)
        page = f"{engine.agent.http_url}/drained"
        async with http.get(page) as before:
            assert (before.status, "the engine takes requests" in await before.text()) == (503, True)
        hook = asyncio.create_task(http.get(f"{page}?wait_s=60"))
        ended = asyncio.create_task(engine.agent.terminate())
        await eventually(lambda: loads[-1].state == "draining")
        assert not answer.done(), "the engine is still at work when it is said to drain"
        assert await seen.entry(WorkerRegistration, POOL, "engine-1") is not None
        answer.cancel()
        await asyncio.wait([answer])
        # Kubernetes may end the engine now.
        async with await hook as after:
            assert after.status == 200
        assert await ended == 0
        assert await seen.entry(WorkerRegistration, POOL, "engine-1") is None
        assert loads[-1].state == "draining"
        assert loads[-1].draining is not None
        assert loads[-1].draining.why == "its agent ends"


async def test_after_a_restart_of_nats_the_worker_is_registered_and_heard_again(
    own_nats_server: NatsServer, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        await seen.make_workers_bucket()
        loads = seen.listen(WorkerLoad, ANY, ANY)
        engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url})
        url = await engine.agent.wait_ready()
        await eventually(lambda: loads)
        await asyncio.to_thread(own_nats_server.kill)

        async def says_why() -> bool:
            return "bus" in await reasons(url)

        await eventually(says_why)
        await asyncio.to_thread(own_nats_server.start)
        await engine.agent.wait_ready()
        # It was kept in memory.
        await seen.make_workers_bucket()
        heard = len(loads)
        await eventually(lambda: len(loads) > heard)

        async def registered() -> object:
            return await seen.entry(WorkerRegistration, POOL, "engine-1")

        await eventually(registered)
        store = await seen.js.key_value("pm-workers")
        await store.purge(f"{POOL}.engine-1")
        await eventually(registered)


@pytest.mark.requirement("SIGNAL-5")
async def test_of_two_agents_with_one_name_the_first_serves_and_the_second_says_why_it_does_not(
    own_nats_server: NatsServer, processes: Processes, tmp_path: Path
) -> None:
    """gpustack/gpustack #3922: both served in turns, and nothing said so."""
    async with observing(own_nats_server.url) as seen:
        announced, loads = seen.listen(WorkerAnnouncement, POOL, "twin"), seen.listen(WorkerLoad, POOL, "twin")
        engines: list[EngineProcess] = []
        for name in ("engine-1", "engine-2"):
            engine = EngineProcess(name, processes, tmp_path, speedup=20.0)
            await engine.start()
            engine.start_agent({"POINTSMAN_NATS_URL": own_nats_server.url, "POINTSMAN_WORKER": "twin"})
            engines.append(engine)
            if name == "engine-1":
                await engine.agent.wait_ready()
        first, second = engines
        await eventually(lambda: announced and announced[-1].findings)
        finding = announced[-1].findings[0]
        assert finding.kind == "twin_name"
        assert first.url in finding.what
        assert second.url in finding.what
        assert {each.registration.url for each in announced} == {first.url}
        assert len({load.boot_id for load in loads}) == 1

        def taken_from() -> list[object]:
            lines = second.agent.log_lines()
            return [line["url"] for line in lines if line.get("event") == "worker_name_taken"]

        # The second agent looks for itself, maybe after the first has told its finding.
        await eventually(taken_from)
        assert taken_from() == [first.url]
        first.agent.kill()
        await eventually(lambda: announced[-1].registration.url == second.url)
        await eventually(lambda: loads[-1].boot_id == announced[-1].registration.boot_id)
        assert (await reasons(await second.agent.wait_ready())).get("engine") is None
