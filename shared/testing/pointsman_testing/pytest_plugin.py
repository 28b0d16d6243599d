"""Fixtures for every member of the workspace; loaded through the `pytest11` entry point."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from pointsman_testing.nats_server import NatsServer, new_nats_server
from pointsman_testing.processes import Processes

if TYPE_CHECKING:
    from pointsman_testing.buses import Buses


def pytest_configure(config: pytest.Config) -> None:
    """Make the project's marker known, and let no timing decide a property: a busy machine is slow, not wrong.

    With `CI` in the environment the generated cases are the same in each run, as in Hypothesis's own profile for it, so
    that a change is judged by the change. Other runs look for new cases.
    """
    hypothesis.settings.register_profile(
        "pointsman",
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        derandomize="CI" in os.environ,
    )
    hypothesis.settings.load_profile("pointsman")
    config.addinivalue_line("markers", "requirement(*ids): points of tests/requirements.py that this test shows")


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """A NATS server that the tests of one worker process share. Leave no stream and no bucket on it."""
    server = new_nats_server()
    server.start()
    yield server
    server.close()


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    """A NATS server for one test alone, which may stop, kill and pause it."""
    server = new_nats_server()
    server.start()
    yield server
    server.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts console scripts; everything that a test started ends with the test."""
    started = Processes(tmp_path)
    yield started
    started.end_all()


@pytest.fixture(params=["memory", "nats", "bundle"])
async def buses(request: pytest.FixtureRequest) -> AsyncIterator["Buses"]:
    """Makes buses that talk to each other; the test runs in memory, on a real server, and with all
    services that have one replica in one process."""
    # Imported here: a test run that uses no bus doesn't pay for one.
    from pointsman_runtime.bus.connection import Connection
    from pointsman_runtime.bus.link import Link
    from pointsman_testing.buses import Buses
    from pointsman_testing.memory_nats import MemoryNats

    if request.param != "nats":
        new_link: Callable[[], Link] = MemoryNats().link
    else:
        url: str = request.getfixturevalue("nats_server").url
        new_link = lambda: Connection([url], name="test")  # noqa: E731 - a function with a name would say no more
    made = Buses(new_link, bundled=request.param == "bundle")
    yield made
    await made.close()
