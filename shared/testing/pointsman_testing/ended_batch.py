"""A batch, followed for as long as it goes on."""

from typing import Final

import openai
from openai.types import Batch

from pointsman_testing.eventually import eventually

ENDED: Final = ("completed", "failed", "expired", "cancelled")


async def ended_batch(ai: openai.AsyncOpenAI, batch: str) -> Batch:
    """The batch once it has ended. Each further line comes within a bound, and so does the end after the last one: a
    machine without time makes a batch last longer, and isn't a failure."""
    answered = -1

    async def further() -> Batch | None:
        now = await ai.batches.retrieve(batch)
        return now if now.status in ENDED or _answered(now) > answered else None

    while True:
        found = await eventually(further, timeout=60)
        if found.status in ENDED:
            return found
        answered = _answered(found)


def _answered(batch: Batch) -> int:
    counts = batch.request_counts
    return 0 if counts is None else counts.completed + counts.failed
