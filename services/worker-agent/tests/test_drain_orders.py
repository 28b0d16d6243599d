"""An agent carries out the orders of operators about its engine's life, and of nothing else."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pointsman_contracts.draining import DrainOrder
from pointsman_engines.drain import Drain
from pointsman_engines.speaker import EngineSpeaker
from pointsman_worker_agent.handlers import ENDS, Handlers
from pointsman_worker_agent.name_claimer import NameClaimer


@dataclass
class Speaker:
    """As much of an `EngineSpeaker` as orders need."""

    drain: Drain | None = None
    set: list[Drain | None] = field(default_factory=list[Drain | None])
    left: bool = False
    status: Any = field(
        default_factory=lambda: SimpleNamespace(boot_id="b1", reachable=True, reading=SimpleNamespace(busy=False))
    )

    def set_drain(self, drain: Drain | None) -> None:
        if drain != self.drain:
            self.set.append(drain)
        self.drain = drain

    async def stop(self, *, leave: bool) -> None:
        self.left = leave


def handlers(speaker: Speaker, within_s: float = 60.0) -> Handlers:
    names = SimpleNamespace(leaving=False, publish_claim=lambda: None)
    return Handlers(cast("EngineSpeaker", speaker), cast("NameClaimer", names), within_s)


async def test_an_order_that_comes_again_changes_nothing() -> None:
    speaker = Speaker()
    agent = handlers(speaker)
    agent.take_order(DrainOrder(boot_id="b1", left_ms=30_000, why="upgrade"))
    agent.take_order(DrainOrder(boot_id="b1", left_ms=29_900, why="upgrade"))
    assert len(speaker.set) == 1
    agent.take_order(DrainOrder(boot_id="b1", left_ms=1_000, why="upgrade"))
    assert len(speaker.set) == 2
    agent.take_order(DrainOrder(boot_id="b1", undo=True))
    assert speaker.drain is None


@pytest.mark.parametrize("undo", [False, True])
async def test_an_order_for_another_life_is_ignored(undo: bool) -> None:
    speaker = Speaker(Drain(why="upgrade"))
    handlers(speaker).take_order(DrainOrder(boot_id="b0", left_ms=1, undo=undo))
    assert speaker.drain == Drain(why="upgrade")


async def test_an_agent_that_ends_tells_when_the_rest_moves_and_takes_no_more_orders() -> None:
    speaker = Speaker()
    agent = handlers(speaker, within_s=5.0)
    await agent.drain()
    assert speaker.left
    assert speaker.drain is not None
    assert speaker.drain.why == ENDS
    assert agent.drained
    agent.take_order(DrainOrder(boot_id="b1", undo=True))
    assert speaker.drain is not None
