"""Slots go to senders in turn: one with many lines that wait takes none from one with few."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pointsman_batch.domain.pace import Pace
from pointsman_batch.slots import Slots


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1),
    st.integers(1, 4),
    st.sets(st.sampled_from("abcd")),
)
def test_senders_get_slots_in_turn_while_their_models_have_room(
    waiting: dict[str, int], most: int, full: set[str]
) -> None:
    async def run() -> None:
        # Each sender's lines are for the model of its name.
        slots = Slots(Pace(most), lambda model: model not in full)
        given: list[str] = []

        async def take(sender: str) -> None:
            await slots.take_slot(sender, sender)
            given.append(sender)

        lines = [asyncio.create_task(take(sender)) for sender, count in waiting.items() for _ in range(count)]
        can_run = {sender: count for sender, count in waiting.items() if sender not in full}
        for _ in range(sum(can_run.values()) + 1):
            for _ in range(4):
                await asyncio.sleep(0)
            left = Counter(can_run) - Counter(given)
            so_far = Counter(given)
            for sender in left:
                # The senders that still wait got no less than any other one, but for the turn that isn't over.
                assert so_far[sender] >= max(so_far.values(), default=0) - 1 - most
            if len(given) < sum(can_run.values()):
                slots.give_back()
        assert Counter(given) == Counter(can_run)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)

    asyncio.run(run())


async def test_a_batch_gets_its_turn_beside_a_queue_with_many_items() -> None:
    slots = Slots(Pace(1), lambda model: True)
    order: list[str] = []

    async def take(sender: str) -> None:
        await slots.take_slot(sender, "m")
        order.append(sender)

    items = [asyncio.create_task(take("queue")) for _ in range(50)]
    await asyncio.sleep(0)
    batch = asyncio.create_task(take("batch"))
    await asyncio.sleep(0)
    for _ in range(2):
        slots.give_back()
        await asyncio.sleep(0)
    await asyncio.wait_for(batch, 10)
    assert order == ["queue", "queue", "batch"]
    for item in items:
        item.cancel()
    await asyncio.gather(*items, return_exceptions=True)
