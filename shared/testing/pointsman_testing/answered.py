"""A client that does as it is told: 503 and 504 say that a process of the gateway doesn't answer, for which a busy
machine is enough, and to come again."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pointsman_testing.eventually import eventually

A = TypeVar("A", bound="tuple[Any, ...]")

_COME_AGAIN: Final = (503, 504)


async def answered(ask: Callable[[], Awaitable[A]]) -> A:
    """What `ask()` returns, which begins with a status, once that says no more to come again."""

    async def once() -> list[A]:
        answer = await ask()
        return [] if answer[0] in _COME_AGAIN else [answer]

    [answer] = await eventually(once)
    return answer
