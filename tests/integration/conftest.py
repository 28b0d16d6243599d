"""Stacks of real processes. Tests of one module share theirs, and run in one worker process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pointsman_cli.stack import envoy
from pointsman_cli.stack.envoy_engines import Address
from pointsman_testing import Processes
from pointsman_testing.envoy_process import start_envoy as start_envoy_process
from pointsman_testing.stack import Stack, StackFactory

StartEnvoy = Callable[..., Awaitable[str]]

SAMPLE = Path(__file__).resolve().parents[2] / "pointsman.yaml"


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> StackFactory:
    """Starts stacks with the sample configuration."""
    return StackFactory(tmp_path_factory.mktemp("stacks"), SAMPLE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    """One replica of each service and two engines; leave it as it was."""
    async with stacks.start() as started:
        yield started


@pytest.fixture(scope="module")
def module_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes that all tests of a module share."""
    processes = Processes(tmp_path_factory.mktemp("processes"))
    yield processes
    processes.end_all()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def start_envoy(module_processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> StartEnvoy:
    """`await start_envoy(adapter, engines, filters=[…], **how)`: the real Envoy; returns where it takes requests.

    Addresses are host and port; `filters` stand before the adapter's and `behind` after it, `how` is as
    `pointsman_cli.stack.envoy.document` says.
    """
    executable = await asyncio.to_thread(envoy.executable)

    async def start(
        adapter: Address,
        engines: Sequence[Address],
        *,
        filters: Sequence[dict[str, Any]] = (),
        behind: Sequence[dict[str, Any]] = (),
        **how: Any,
    ) -> str:
        folder = tmp_path_factory.mktemp("envoy")
        document = envoy.document(("127.0.0.1", 0), [adapter], engines, **how)
        [listener] = document["static_resources"]["listeners"]
        chain = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        chain[:1] = [*filters, chain[0], *behind]
        return await start_envoy_process(module_processes, executable, document, folder)

    return start
