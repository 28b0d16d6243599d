"""Engines without an agent are spoken for by the collector whose share they are."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import aiohttp
import pytest

from pointsman_contracts.subjects import ANY
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_engines.drain import Drain
from pointsman_engines.report import ReportedWorker
from pointsman_metrics_collector.adapters.engine_speakers import EngineSpeakers
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine
from pointsman_testing import eventually
from pointsman_testing.buses import Buses
from pointsman_testing.fake_engine import FakeEngine


class Stop(Protocol):
    """`EngineSpeaker.stop`."""

    async def __call__(self, *, leave: bool) -> None: ...


class Bucket:
    """The bucket of registered workers, in memory."""

    def __init__(self) -> None:
        self.entries: dict[str, WorkerRegistration] = {}
        self.puts = 0

    async def put(self, key: str, value: bytes) -> int:
        self.puts += 1
        self.entries[key] = WorkerRegistration.decode(value)
        return self.puts

    async def delete(self, key: str) -> None:
        del self.entries[key]


def named(engine: FakeEngine, worker: str = "w1", **labels: str) -> dict[Key, ScrapedEngine]:
    return {("p", worker): ScrapedEngine(ReportedWorker("p", worker, engine.url, labels=labels))}


class Share:
    """One collector's speakers, with the configuration and the peers that the test sets."""

    def __init__(self, buses: Buses, bucket: Bucket, instance: str) -> None:
        self.service = buses.make("metrics-collector", instance)
        self.bucket = bucket
        self.engines: dict[Key, ScrapedEngine] = {}
        self.peers = {self.service.process.instance}
        self.ordered: dict[Key, Drain] = {}
        self.speakers: EngineSpeakers

    @property
    def spoken_for(self) -> list[str]:
        return [speaker.worker.worker for speaker in self.speakers.active_speakers()]


@asynccontextmanager
async def running(*shares: Share) -> AsyncGenerator[None]:
    async with aiohttp.ClientSession() as session:
        tasks: list[asyncio.Task[None]] = []
        for share in shares:
            share.speakers = EngineSpeakers(
                bus=share.service.bus,
                entries=share.bucket,
                session=session,
                named=lambda s=share: s.engines,
                instances=lambda _pool, s=share: s.peers,
                ordered=lambda key, s=share: s.ordered.get(key),
            )
            tasks.append(asyncio.create_task(share.speakers.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for share in shares:
                await share.speakers.stop()


async def test_an_engine_of_the_configuration_is_registered_and_heard_until_it_is_taken_out(buses: Buses) -> None:
    bucket, loads = Bucket(), list[WorkerLoad]()
    share = Share(buses, bucket, "1")
    buses.make("scheduler").bus.listen(WorkerLoad, loads.append, ANY, ANY)
    await buses.meet()
    async with FakeEngine(running=3) as engine, running(share):
        share.engines = named(engine)
        await eventually(lambda: loads and loads[-1].running == 3)
        await eventually(lambda: "p.w1" in bucket.entries)
        assert bucket.entries["p.w1"].agent == "metrics-collector-1"
        share.engines = named(engine, rack="7")
        await eventually(lambda: bucket.entries["p.w1"].labels == {"rack": "7"})
        share.engines = {}
        await eventually(lambda: not bucket.entries)
        assert share.spoken_for == []


async def test_an_engine_goes_to_another_collector_and_stays_registered(buses: Buses) -> None:
    bucket = Bucket()
    shares = [Share(buses, bucket, "1"), Share(buses, bucket, "2")]
    everybody = {share.service.process.instance for share in shares}
    await buses.meet()
    async with FakeEngine() as engine, running(*shares):
        for share in shares:
            share.peers = everybody
            share.engines = named(engine)
        await eventually(lambda: [share.spoken_for for share in shares].count(["w1"]) == 1)
        await eventually(lambda: "p.w1" in bucket.entries)
        boot_id = bucket.entries["p.w1"].boot_id
        first, second = sorted(shares, key=lambda share: not share.spoken_for)
        second.peers = {second.service.process.instance}
        await eventually(lambda: second.spoken_for == ["w1"])
        await eventually(lambda: bucket.entries["p.w1"].agent == second.service.process.instance)
        assert bucket.entries["p.w1"].boot_id == boot_id, "another observer names the same life alike"
        first.peers = second.peers
        await eventually(lambda: first.spoken_for == [])
        assert "p.w1" in bucket.entries


async def test_all_engines_are_registered_again_when_the_bucket_may_have_lost_them(buses: Buses) -> None:
    bucket = Bucket()
    share = Share(buses, bucket, "1")
    await buses.meet()
    async with FakeEngine() as engine, running(share):
        share.engines = named(engine)
        await eventually(lambda: "p.w1" in bucket.entries)
        bucket.entries.clear()
        share.speakers.renew_registrations()
        await eventually(lambda: "p.w1" in bucket.entries)


async def test_an_engine_that_drains_is_published_so_at_once_and_goes_on_with_the_same_speaker(buses: Buses) -> None:
    bucket, loads = Bucket(), list[WorkerLoad]()
    share = Share(buses, bucket, "1")
    buses.make("scheduler").bus.listen(WorkerLoad, loads.append, ANY, ANY)
    await buses.meet()
    async with FakeEngine() as engine, running(share):
        share.engines = named(engine)
        await eventually(lambda: loads and loads[-1].state == "serving" and "p.w1" in bucket.entries)
        [speaker] = share.speakers.active_speakers()
        for draining, state in ((True, "draining"), (False, "serving")):
            share.engines = {key: replace(one, draining=draining) for key, one in named(engine).items()}
            share.speakers.check_at_once()
            await eventually(lambda state=state: loads[-1].state == state)
        assert share.speakers.active_speakers() == [speaker]


async def test_an_endpoint_without_metrics_is_registered_as_one_that_tells_no_load(buses: Buses) -> None:
    bucket = Bucket()
    share = Share(buses, bucket, "1")
    await buses.meet()
    async with FakeEngine(exposition="nothing of an engine's") as front, running(share):
        share.engines = {key: replace(one, engine="opaque", health="/health") for key, one in named(front).items()}
        await eventually(lambda: "p.w1" in bucket.entries)
        assert (bucket.entries["p.w1"].engine, bucket.entries["p.w1"].models) == ("opaque", ("m",))


async def test_all_speakers_fall_silent_at_once_however_many_there_are(
    buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, a thousand that take a moment each would outlast what a process has to stop."""
    stopping: list[str] = []
    let_go = asyncio.Event()
    share = Share(buses, Bucket(), "1")
    await buses.meet()
    async with running(share):
        share.engines = {
            ("p", f"w{number}"): ScrapedEngine(ReportedWorker("p", f"w{number}", "http://127.0.0.1:9"))
            for number in range(50)
        }
        await eventually(lambda: len(share.spoken_for) == 50)
        for speaker in share.speakers.active_speakers():
            silence = speaker.stop

            async def slowly(*, leave: bool, silence: Stop = silence, name: str = speaker.worker.worker) -> None:
                stopping.append(name)
                await silence(leave=leave)
                await let_go.wait()

            monkeypatch.setattr(speaker, "stop", slowly)
        share.engines = {}
        share.speakers.check_at_once()
        await eventually(lambda: len(stopping) == 50)
        let_go.set()
