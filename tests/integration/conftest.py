"""Stacks of real processes. Tests of one module share theirs, and run in one worker process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pointsman_testing.stack import Stack, StackFactory

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
