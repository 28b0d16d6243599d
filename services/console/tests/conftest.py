"""A console as a process."""

from collections.abc import AsyncIterator

import pytest

from pointsman_testing import NatsServer, Processes
from pointsman_testing.console_scene import ConsoleScene
from pointsman_testing.observer import observing


@pytest.fixture
async def scene(own_nats_server: NatsServer, processes: Processes) -> AsyncIterator[ConsoleScene]:
    async with observing(own_nats_server.url) as seen:
        yield ConsoleScene(own_nats_server, seen, processes)
