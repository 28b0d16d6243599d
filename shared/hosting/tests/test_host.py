"""Several services in one process: how it ends."""

import asyncio

import pytest

from pointsman_hosting.host import Host, decides_elsewhere
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.telling.process import Process
from pointsman_testing import NatsServer, eventually


@pytest.mark.parametrize(
    ("services", "elsewhere"),
    [
        ({"frontend"}, True),
        ({"epp-adapter", "preprocessor"}, True),
        ({"frontend", "scheduler"}, False),
        ({"scheduler"}, False),
        ({"recorder"}, False),
    ],
)
def test_a_process_that_takes_requests_without_a_scheduler_decides_elsewhere(
    services: set[str], elsewhere: bool
) -> None:
    assert decides_elsewhere(services) is elsewhere


class Door:
    """Has a request in hand that ends when the other door, too, takes nothing new."""

    url = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.other = self
        self.open = asyncio.Event()
        self.stopping = asyncio.Event()

    async def start(self) -> None:
        """Take requests."""
        self.open.set()

    async def stop(self) -> None:
        """Take nothing new, and let the request in hand end."""
        self.stopping.set()
        await self.other.stopping.wait()


async def test_the_edges_of_a_process_end_at_the_same_time(nats_server: NatsServer) -> None:
    """One after the other, they would take twice as long as the process may."""
    settings = ServiceSettings(nats_url=nats_server.url, instance="gateway")
    host = Host(Process("bundle", settings.instance, "0"), settings)
    first, second = Door(), Door()
    first.other, second.other = second, first
    for name, door in (("frontend", first), ("epp-adapter", second)):

        def build(service: Service[ServiceSettings], door: Door = door) -> None:
            service.serve(door)

        host.add_service(Program(name, ServiceSettings, build, "pointsman-runtime").build_member(settings))
    running = asyncio.ensure_future(host.run())
    await first.open.wait()
    await second.open.wait()
    host.stop()
    assert await running == 0


async def test_a_client_that_a_balancer_still_sends_to_an_ending_process_finds_it(nats_server: NatsServer) -> None:
    """A pod that is deleted by force gets SIGTERM before the nodes hear that it is gone."""
    settings = ServiceSettings(nats_url=nats_server.url, instance="gateway", linger_s=1)
    host = Host(Process("bundle", settings.instance, "0"), settings)
    door = Door()

    def build(service: Service[ServiceSettings]) -> None:
        service.serve(door)

    host.add_service(Program("frontend", ServiceSettings, build, "pointsman-hosting").build_member(settings))
    running = asyncio.ensure_future(host.run())
    await door.open.wait()
    host.stop()
    await eventually(lambda: bool(host.check_readiness().failed_checks()))
    assert not door.stopping.is_set()
    assert await running == 0
    assert door.stopping.is_set()


async def test_of_several_agents_in_a_process_each_has_its_say_whether_it_is_ready(nats_server: NatsServer) -> None:
    settings = ServiceSettings(nats_url=nats_server.url, instance="gateway")
    host = Host(Process("bundle", settings.instance, "0"), settings)
    for problem in ("no answer", None):

        def build(service: Service[ServiceSettings], problem: str | None = problem) -> None:
            service.readiness.add_check("engine", lambda: problem)

        host.add_service(Program("worker-agent", ServiceSettings, build, "pointsman-runtime").build_member(settings))
    reasons = host.check_readiness().failed_checks()
    assert len(reasons) == 2
    assert "engine: no answer" in reasons["worker-agent gateway"]
    assert "engine" not in reasons["worker-agent gateway-2"]


async def test_a_process_ends_while_the_server_of_its_bus_does_not_answer(nats_server: NatsServer) -> None:
    """Without an end of its own it would wait until the cluster kills it."""
    settings = ServiceSettings(nats_url=nats_server.url, instance="gateway")
    host = Host(Process("bundle", settings.instance, "0"), settings)
    door = Door()

    def build(service: Service[ServiceSettings]) -> None:
        service.serve(door)

    host.add_service(Program("frontend", ServiceSettings, build, "pointsman-hosting").build_member(settings))
    running = asyncio.ensure_future(host.run())
    await door.open.wait()
    nats_server.pause()
    try:
        host.stop()
        async with asyncio.timeout(30):
            assert await running == 0
    finally:
        nats_server.resume()
