"""Decides which close question has the answer: by their words, or by a model where one is configured."""

import asyncio
from collections.abc import Sequence

from pointsman_core.config import WORDS, GateSettings
from pointsman_semantic_cache.domain.entry import Meaning
from pointsman_semantic_cache.domain.finding import Found, find_meant
from pointsman_semantic_cache.domain.model_gate import GateUnavailable, find_judged
from pointsman_semantic_cache.domain.store import Near
from pointsman_semantic_cache.surroundings import CacheSurroundings


async def judge(
    around: CacheSurroundings, name: str, gate: GateSettings, question: str, meaning: Meaning, near: Sequence[Near]
) -> Found:
    """`name`: the cache's. `question`: the text of `meaning`. Raises GateUnavailable."""
    if gate.use == WORDS:
        return find_meant(meaning, near)
    if not near:
        return Found(None, 0.0, ())
    try:
        with around.metrics.time_gate():
            async with asyncio.timeout(gate.timeout):
                model = await around.gates.get(gate)
                found = await find_judged(model, gate.threshold, question, near)
    except GateUnavailable:
        around.metrics.gate_failed(name)
        raise
    except TimeoutError as error:
        around.metrics.gate_failed(name)
        raise GateUnavailable(f"the gate's model took longer than {gate.timeout:g} s") from error
    around.missing.note_recovery("gate")
    return found
