"""A client that obeys 503 and 504: a process of the gateway didn't answer, which a busy machine can cause, and the
client should retry."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pointsman_testing.eventually import eventually

A = TypeVar("A", bound="tuple[Any, ...]")

_COME_AGAIN: Final = (503, 504)


async def answered(ask: Callable[[], Awaitable[A]]) -> A:
    """Retries `ask()` while its status asks for that; returns the final result, which begins with a status."""

    async def once() -> list[A]:
        answer = await ask()
        return [] if answer[0] in _COME_AGAIN else [answer]

    [answer] = await eventually(once)
    return answer
