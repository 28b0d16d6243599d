"""Writes of one turn of the event loop: which wait for others, and when they leave."""

import asyncio

from pointsman_frontend.adapters.gathered_writes import GatheredWrites


async def test_a_write_that_none_follows_leaves_at_once() -> None:
    writes, sent = GatheredWrites(), list[str]()
    writes.add(lambda: sent.append("a"))
    assert sent == ["a"]


async def test_writes_wait_for_those_that_follow_in_the_turn_and_leave_in_order() -> None:
    writes, sent = GatheredWrites(), list[str]()

    async def task(name: str) -> None:
        writes.to_come -= 1
        writes.add(lambda: sent.append(name))
        seen.append([*sent])

    seen = list[list[str]]()
    tasks = [asyncio.create_task(task(name)) for name in ("a", "b", "c")]
    writes.to_come = len(tasks)
    await asyncio.gather(*tasks)
    assert seen == [[], [], ["a", "b", "c"]]
    assert sent == ["a", "b", "c"]


async def test_a_write_leaves_by_the_end_of_the_turn_although_the_one_that_was_to_follow_waits() -> None:
    writes, sent = GatheredWrites(), list[str]()
    writes.to_come = 1
    for name in ("a", "b"):
        writes.add(lambda name=name: sent.append(name))
    assert sent == []
    await asyncio.sleep(0)
    assert sent == ["a", "b"]
    writes.to_come = 0
    writes.add(lambda: sent.append("c"))
    assert sent == ["a", "b", "c"]
