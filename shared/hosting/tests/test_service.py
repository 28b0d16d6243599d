"""A whole service as a process on a real server."""

import asyncio
import itertools
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.reply import Decision, read_reply
from pointsman_contracts.subjects import ANY
from pointsman_contracts.timing import TIMES
from pointsman_journey.journeys import Journeys
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.connection import Connection
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY, HISTORY
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, Processes, ServiceProcess, builders, eventually

SERVICE = (str(Path(__file__).with_name("sample_service.py")), "scheduler")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "pointsman.yaml"
    path.write_text("pools: {llama-8b: {}}\n")
    return path


def start(processes: Processes, server: NatsServer, config: str) -> ServiceProcess:
    return processes.fork(*SERVICE, env={"POINTSMAN_NATS_URL": server.url, "POINTSMAN_CONFIG": config})


async def ready_reasons(url: str) -> dict[str, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/ready") as response:
        document = await response.json()
        assert (response.status == 200) == document["ready"]
        return document["reasons"]


async def ask_for_a_decision(server: NatsServer) -> Decision:
    service = Journeys(Bus(Connection([server.url], name="test"), Process("frontend", "test")))
    answers: list[object] = []
    service.bus.link.subscribe("_INBOX.test", lambda _s, _r, _h, payload: answers.append(read_reply(payload)))
    service.open()
    await service.bus.wait_connected()

    async def decided() -> Decision | None:
        count = len(answers)
        service.forward(builders.journey("scheduler"), "_INBOX.test")
        await eventually(lambda: len(answers) > count)
        return answers[-1] if isinstance(answers[-1], Decision) else None

    try:
        return await eventually(decided)
    finally:
        await service.close()


async def test_a_service_answers_and_ends_with_0_on_sigterm(
    nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    env = {"POINTSMAN_NATS_URL": nats_server.url, "POINTSMAN_CONFIG": str(config_file)}
    service = processes.start_command([sys.executable, *SERVICE], env=env)
    await service.wait_ready()
    assert (await ask_for_a_decision(nats_server)).revision == 1
    assert await service.terminate() == 0
    assert "Traceback" not in service.log_text()


@pytest.mark.requirement("S1-5")
async def test_a_service_does_not_get_ready_beside_one_that_speaks_other_contracts(
    nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    bus = Bus(Connection([nats_server.url], name="newer"), Process("guard", "guard-1"))
    bus.open()
    await bus.wait_connected()

    async def beat() -> None:
        for sequence in itertools.count(1):
            newer = ServicePresence(
                service="guard", instance="guard-1", sequence=sequence, at_ms=0, version="9.0", contracts=(9, 9)
            )
            bus.publish(newer, newer.service, newer.instance)
            await asyncio.sleep(TIMES.beat_s)

    beating = asyncio.create_task(beat())
    try:

        async def refused() -> tuple[ServiceProcess, str] | None:
            service = start(processes, nats_server, str(config_file))
            url = await eventually(lambda: service.http_url)
            while reasons := await ready_reasons(url):
                if "contracts" in reasons:
                    return service, reasons["contracts"]
                await asyncio.sleep(0)
            return None

        # On a machine that stands still while it starts, a service hears no beat and gets ready: then the next one.
        service, reason = await eventually(refused)
        assert reason.startswith(
            "guard guard-1 (version 9.0) speaks generation 9 of the contracts, this scheduler (version 0.1.0) 1: "
        )
        beating.cancel()
        await service.wait_ready()
    finally:
        beating.cancel()
        await bus.close()


async def test_a_service_without_a_server_says_why_and_gets_ready_when_it_comes(
    own_nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    own_nats_server.kill()
    service = start(processes, own_nats_server, str(config_file))
    url = await eventually(lambda: service.http_url)
    await eventually(lambda: "bus_unreachable" in service.log_text())
    assert "Connection refused" in (await ready_reasons(url))["bus"]
    await asyncio.to_thread(own_nats_server.start)
    await service.wait_ready()
    assert await service.terminate() == 0


async def test_a_service_survives_a_restart_of_the_server_and_ends_cleanly_without_one(
    own_nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    service = start(processes, own_nats_server, str(config_file))
    url = await service.wait_ready()
    own_nats_server.kill()

    async def not_ready() -> bool:
        return "bus" in await ready_reasons(url)

    await eventually(not_ready)
    await asyncio.to_thread(own_nats_server.start)
    await service.wait_ready()
    await ask_for_a_decision(own_nats_server)
    own_nats_server.kill()
    await eventually(not_ready)
    assert await service.terminate() == 0


async def test_sigterm_while_waiting_for_the_server_ends_at_once(
    own_nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    own_nats_server.kill()
    service = start(processes, own_nats_server, str(config_file))
    await eventually(lambda: service.http_url)
    assert await service.terminate() == 0


async def test_a_service_follows_the_configuration_in_the_bucket(
    own_nats_server: NatsServer, processes: Processes
) -> None:
    service = start(processes, own_nats_server, "kv")
    url = await eventually(lambda: service.http_url)

    async def waits_for_a_configuration() -> bool:
        return "pointsman config apply" in (await ready_reasons(url)).get("configuration", "")

    await eventually(waits_for_a_configuration)
    bus = Bus(Connection([own_nats_server.url], name="test"), Process("cli", "test"))
    events = Events(ServiceSettings(nats_url=own_nats_server.url), bus.process, bus.tallies)
    events.open()
    bucket = Bucket(events, CONFIG_BUCKET, history=HISTORY)
    first = await bucket.put(CONFIG_KEY, b"pools: {llama-8b: {}}")
    await service.wait_ready()
    assert (await ask_for_a_decision(own_nats_server)).revision == first
    await bucket.put(CONFIG_KEY, b"pools: {llama-8b: {scheduling: nowhere}}")
    await eventually(lambda: any(line["event"] == "config_refused" for line in service.log_lines()))
    assert (await ask_for_a_decision(own_nats_server)).revision == first
    third = await bucket.put(CONFIG_KEY, b"pools: {llama-8b: {}, other: {}}")

    async def third_in_use() -> bool:
        return f"pointsman_config_revision {float(third)}" in await metrics(url)

    await eventually(third_in_use)
    await events.close()
    assert await service.terminate() == 0


async def metrics(url: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
        return await response.text()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"POINTSMAN_NATS_URL": "nats://10.0.0.1:4222"}, "no credentials are set"),
        ({"POINTSMAN_NATS_TLS_CA": "/etc/passwd"}, "POINTSMAN_NATS_TLS_CA"),
        ({"POINTSMAN_HTTP_HOST": "0.0.0.0"}, "asks for no credential"),  # noqa: S104 - refused
        ({"POINTSMAN_HTTP_PORT": "http"}, "POINTSMAN_HTTP_PORT"),
        ({"POINTSMAN_SETTINGS": "/nowhere/settings.yaml"}, "no such file"),
    ],
)
async def test_wrong_settings_end_the_process_with_78_and_words(
    processes: Processes, env: dict[str, str], words: str
) -> None:
    service = processes.fork(*SERVICE, env=env)
    await eventually(lambda: service.returncode is not None)
    assert service.returncode == 78
    assert words in service.log_text()
    assert "Traceback" not in service.log_text()


async def test_a_bad_configuration_file_ends_the_process_with_78_and_the_line(
    nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    bad = config_file.with_name("bad.yaml")
    await asyncio.to_thread(bad.write_text, "pools:\n  llama-8b:\n    shceduling: default\n")
    service = start(processes, nats_server, str(bad))
    await eventually(lambda: service.returncode is not None)
    assert service.returncode == 78
    assert "shceduling" in service.log_text()
    assert "(line 3)" in service.log_text()
    assert "Traceback" not in service.log_text()


async def test_a_stopped_and_continued_service_serves_again(
    nats_server: NatsServer, processes: Processes, config_file: Path
) -> None:
    service = start(processes, nats_server, str(config_file))
    await service.wait_ready()
    observer = Journeys(Bus(Connection([nats_server.url], name="observer"), Process("frontend", "observer")))
    beats: list[float] = []
    now = asyncio.get_running_loop().time
    observer.bus.listen(ServicePresence, lambda _: beats.append(now()), "scheduler", ANY)
    observer.open()
    try:
        await eventually(lambda: beats)
        service.signal(signal.SIGSTOP)
        await eventually(lambda: now() - beats[-1] > TIMES.service_silent_s)
        before = len(beats)
        service.signal(signal.SIGCONT)
        await eventually(lambda: len(beats) > before)
    finally:
        await observer.close()
    await ask_for_a_decision(nats_server)
