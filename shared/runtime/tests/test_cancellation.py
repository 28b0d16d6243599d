"""Tasks end, whatever became of their first cancellation."""

import asyncio

import pytest

from pointsman_runtime.bus import cancellation


async def test_a_task_that_lost_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "AGAIN_S", 0.01)
    lost: list[int] = []

    async def loses_one() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(1)

    task = asyncio.create_task(loses_one())
    await asyncio.sleep(0)
    await cancellation.end_all([task])
    assert (task.cancelled(), lost) == (True, [1])


async def test_nothing_to_end_is_ended_at_once() -> None:
    await cancellation.end_all([])
