"""CPU that one message costs a stage, and one request its caller. Run: `python benchmarks/bus/message_cost.py`.

A stage runs in a process of its own: it receives a journey, decodes it, advances it, encodes it and forwards it.
Another process sends the journeys and receives them again. The figure is the stage's CPU time (user and system) per
message without idle time: once with a steady stream, once saturated.
"""

import argparse
import asyncio
import multiprocessing as mp
import os
import platform
import sys
import time
from multiprocessing.connection import Connection as Pipe

import uvloop

from pointsman_contracts.journey import Journey, RequestFacts, StageReport, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.presence import OpenRequestsQuery
from pointsman_contracts.subjects import subject
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.telling.process import Process
from pointsman_testing import eventually
from pointsman_testing.builders import journey, unix_ms
from pointsman_testing.nats_server import LocalNatsServer

STAGE_BAR_US = 45.0
ASK_BAR_US = 50.0


def sample(stages: tuple[str, ...]) -> Journey:
    """A journey with a 1 KB prompt behind it, on its way."""
    return journey(
        *stages,
        deadline_ms=unix_ms(3600),
        request=RequestFacts(
            api="chat.completions",
            stream=True,
            body_bytes=1024,
            prompt_tokens=256,
            blocks=Blob(os.urandom(32)),
            headers={"content-type": "application/json", "user-agent": "openai-python/2.0", "x-tenant": "a"},
            fields={"temperature": 0.2, "max_tokens": 64, "stream": True},
        ),
        target=Target(model="llama-8b", pool="llama-8b"),
        trail=(StageReport(stage="preprocessor", instance="host-1234-abcd", took_ms=0.21),),
    )


def run_stage(url: str, pipe: Pipe) -> None:
    """The process under measurement."""

    async def live() -> None:
        service = Journeys(Bus(Connection([url], name="stage"), Process("model-selector", "stage-1")))

        service.stage(Journey, lambda _, hop: hop.advance(note="cheapest"))
        service.open()
        await service.bus.wait_connected()
        service.serve()
        pipe.send("up")
        while (await asyncio.to_thread(pipe.recv)) != "end":
            tally = next(tally for tally in service.bus.hub.tallies if tally.name.startswith("stage"))
            pipe.send((time.process_time(), tally.handled, tally.dropped, tally.dead))
        await service.close()

    uvloop.run(live())


async def stage_cost(url: str, messages: int, rate: float | None) -> tuple[float, float]:
    """(CPU µs per message, messages per second)."""
    here, there = mp.Pipe()
    process = mp.get_context("spawn").Process(target=run_stage, args=(url, there))
    process.start()
    here.recv()
    service = Journeys(Bus(Connection([url], name="driver"), Process("scheduler", "driver")))
    returned = 0

    def took(message_subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        nonlocal returned
        del message_subject, reply, headers, payload
        returned += 1

    service.open()
    await service.bus.wait_connected()
    service.bus.link.subscribe("pm.rpc.request.schedule.v1.>", took, queue="scheduler")
    service.heartbeat.ready = True
    service.heartbeat.publish_state()
    payload_journey = sample(("model-selector", "scheduler"))
    await asyncio.sleep(0.5)

    async def drive(count: int) -> float:
        nonlocal returned
        returned = 0
        started = time.perf_counter()
        for number in range(count):
            service.forward(payload_journey, "_INBOX.nobody.1")
            if rate is None:
                await eventually(lambda number=number: number - returned <= 500)
            elif (ahead := started + number / rate - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
        await eventually(lambda: returned >= count, timeout=30)
        return count / (time.perf_counter() - started)

    await drive(min(messages, 2000))
    here.send("read")
    before = here.recv()
    speed = await drive(messages)
    here.send("read")
    after = here.recv()
    here.send("end")
    process.join()
    await service.close()
    return (after[0] - before[0]) / (after[1] - before[1]) * 1e6, speed


def run_echo(url: str, pipe: Pipe) -> None:
    """Answers every request with its own body."""

    async def live() -> None:
        link = Connection([url], name="echo")
        link.subscribe(subject(OpenRequestsQuery, "echo"), lambda _s, reply, _h, payload: link.publish(reply, payload))
        link.open()
        await eventually(lambda: link.connected)
        pipe.send("up")
        await asyncio.to_thread(pipe.recv)
        await link.close()

    uvloop.run(live())


async def ask_cost(url: str, requests: int, at_once: int) -> float:
    """CPU µs of the asking process per request."""
    here, there = mp.Pipe()
    process = mp.get_context("spawn").Process(target=run_echo, args=(url, there))
    process.start()
    here.recv()
    service = Journeys(Bus(Connection([url], name="asker"), Process("frontend", "asker")))
    service.open()
    await service.bus.wait_connected()
    query = OpenRequestsQuery(request_ids=("a", "b"))

    async def ask(count: int) -> None:
        for _ in range(count):
            await service.bus.ask(query, "echo", timeout=5)

    await ask(200)
    started = time.process_time()
    await asyncio.gather(*(ask(requests // at_once) for _ in range(at_once)))
    cost = (time.process_time() - started) / requests * 1e6
    here.send("end")
    process.join()
    await service.close()
    return cost


def main() -> int:
    """Print the figures beside their bars; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="CPU that one message costs a stage, and one request its caller.")
    parser.add_argument("--messages", type=int, default=20000)
    options = parser.parse_args()
    server = LocalNatsServer()
    server.start()
    try:
        figures = [
            ("stage, saturated", uvloop.run(stage_cost(server.url, options.messages, None)), STAGE_BAR_US),
            ("stage, 1000/s", uvloop.run(stage_cost(server.url, options.messages // 4, 1000.0)), None),
        ]
        asks = [
            (f"ask, {at_once} at once", uvloop.run(ask_cost(server.url, options.messages // 2, at_once)))
            for at_once in (1, 32)
        ]
    finally:
        server.close()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    missed = False
    for name, (cost, speed), bar in figures:
        missed |= bar is not None and cost > bar
        print(f"{name:20} {cost:6.1f} µs CPU/message  bar {bar or '-':>5}  {speed:8.0f}/s")
    for name, cost in asks:
        # One at a time, every request pays a turn of the loop and two system calls by itself.
        bar = ASK_BAR_US if name.startswith("ask, 32") else None
        missed |= bar is not None and cost > bar
        print(f"{name:20} {cost:6.1f} µs CPU/request  bar {bar or '-':>5}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
