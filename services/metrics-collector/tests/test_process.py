"""Collectors as processes, with simulated engines that have no agent."""

import itertools
from pathlib import Path

import aiohttp
import pytest
import yaml

from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY, kv_key
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration, WorkerSilent
from pointsman_testing import NatsServer, Processes, ServiceProcess, eventually
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess


class Collectors:
    """Collectors of one configuration: a pool `static` with the given engines and a pool `agents`."""

    def __init__(self, nats_url: str, processes: Processes, folder: Path, engines: list[str]) -> None:
        self._processes = processes
        config = folder / "pointsman.yaml"
        static = {"discovery": "static", "engines": [{"url": url, "name": f"w{n}"} for n, url in enumerate(engines, 1)]}
        config.write_text(yaml.safe_dump({"pools": {"static": static, "agents": {}}}))
        self._env = {"POINTSMAN_NATS_URL": nats_url, "POINTSMAN_CONFIG": str(config)}

    def start(self) -> ServiceProcess:
        return self._processes.fork("pointsman-metrics-collector", env=self._env)


@pytest.fixture
async def engine(processes: Processes, tmp_path: Path) -> EngineProcess:
    started = EngineProcess("engine-1", processes, tmp_path, speedup=20.0)
    await started.start()
    return started


async def exposed(process: ServiceProcess) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{process.http_url}/metrics") as answer:
        return await answer.text()


def state_of(snapshots: list[PoolSnapshot], pool: str = "static") -> str | None:
    states = [view.state for snapshot in snapshots if snapshot.pool == pool for view in snapshot.workers]
    return states[-1] if states else None


@pytest.mark.requirement("S1-10")
async def test_an_engine_without_an_agent_is_registered_published_stopped_and_back(
    own_nats_server: NatsServer, processes: Processes, tmp_path: Path, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        loads, snapshots = seen.listen(WorkerLoad, ANY, ANY), seen.listen(PoolSnapshot, ANY)
        collector = Collectors(own_nats_server.url, processes, tmp_path, [engine.url]).start()
        await collector.wait_ready()
        await eventually(lambda: state_of(snapshots) == "serving")
        # A worker is served once it is announced; JetStream may store the entry later.
        entry = await eventually(lambda: seen.entry(WorkerRegistration, "static", "w1"))
        assert (entry.url, entry.models, entry.loras) == (engine.url, ("llama-3.1-8b",), ("sql-lora",))
        assert {load.pool for load in loads} == {"static"}
        empty = [snapshot for snapshot in snapshots if snapshot.pool == "agents"]
        assert (empty[-1].saturation, empty[-1].workers) == (1.0, ())
        assert 'pointsman_engine_reachable{pool="static",worker="w1"} 1.0' in await exposed(collector)

        engine.process.pause()
        await eventually(lambda: state_of(snapshots) == "not_ready")
        engine.process.resume()
        await eventually(lambda: state_of(snapshots) == "serving")
        await engine.restart()
        await eventually(lambda: state_of(snapshots) == "serving" and loads[-1].boot_id != entry.boot_id)
        assert await collector.terminate() == 0


async def test_a_killed_collector_leaves_its_engines_to_another(
    own_nats_server: NatsServer, processes: Processes, tmp_path: Path, engine: EngineProcess
) -> None:
    async with observing(own_nats_server.url) as seen:
        collectors = Collectors(own_nats_server.url, processes, tmp_path, [engine.url])
        pair = [collectors.start(), collectors.start()]
        for process in pair:
            await process.wait_ready()

        async def speaks(process: ServiceProcess) -> bool:
            return 'pointsman_engine_reachable{pool="static",worker="w1"} 1.0' in await exposed(process)

        async def one_speaks() -> bool:
            return [await speaks(process) for process in pair].count(True) == 1

        await eventually(one_speaks)
        owner, other = sorted(pair, key=lambda process: process.pid)
        if not await speaks(owner):
            owner, other = other, owner
        snapshots = seen.listen(PoolSnapshot, "static")
        await eventually(lambda: len({snapshot.source for snapshot in snapshots}) == 2)
        owner.kill()

        async def other_speaks() -> bool:
            return await speaks(other)

        await eventually(other_speaks)
        heard = len(snapshots)
        await eventually(lambda: len(snapshots) > heard + 3 and state_of(snapshots) == "serving")


@pytest.mark.requirement("S1-8")
async def test_a_worker_without_an_agent_is_silent_then_gone(
    own_nats_server: NatsServer, processes: Processes, tmp_path: Path
) -> None:
    async with observing(own_nats_server.url) as seen:
        snapshots, silences = seen.listen(PoolSnapshot, "agents"), seen.listen(WorkerSilent, "agents")
        collector = Collectors(own_nats_server.url, processes, tmp_path, ["http://127.0.0.1:9"]).start()
        await collector.wait_ready()
        entry = WorkerRegistration(
            worker="w9", pool="agents", url="http://w9", boot_id="b", agent="a", version="0", registered_ms=0
        )
        store = await seen.js.key_value(WorkerRegistration.address.bucket)
        await store.put(kv_key(WorkerRegistration, "agents", "w9"), entry.encode())
        sequences = itertools.count(1)

        def serves() -> bool:
            """It reports until that is seen, which a busy machine may do after the report has become old."""
            load = WorkerLoad(worker="w9", pool="agents", boot_id="b", sequence=next(sequences), at_ms=0)
            seen.bus.publish(load, "agents", "w9")
            return state_of(snapshots, "agents") == "serving"

        await eventually(serves)
        await eventually(lambda: state_of(snapshots, "agents") == "silent")
        assert snapshots[-1].saturation == 0.0, "a silent worker gets requests, and its load is unknown, not full"
        await eventually(lambda: silences)
        assert silences[0].worker == "w9"
        assert [line["worker"] for line in collector.log_lines() if line.get("event") == "worker_silent"] == ["w9"]
        await eventually(lambda: snapshots[-1].workers == ())
        assert snapshots[-1].saturation == 1.0
        assert 'worker="w9"' not in await exposed(collector)


async def test_without_its_configuration_a_collector_is_not_ready_and_says_so(
    own_nats_server: NatsServer, processes: Processes
) -> None:
    collector = processes.start("pointsman-metrics-collector", env={"POINTSMAN_NATS_URL": own_nats_server.url})

    async def says_why() -> bool:
        if collector.http_url is None:
            return False
        async with aiohttp.ClientSession() as http, http.get(f"{collector.http_url}/ready") as answer:
            return "none received yet" in (await answer.json())["reasons"].get("configuration", "")

    await eventually(says_why)
