"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final

import orjson
from fastapi.responses import Response, StreamingResponse
from pydantic import JsonValue

from pointsman_console.adapters.keys import KeysUnreachable

QUIET_S: Final = 10.0
"""Without an event for so long, a comment shows that the connection lives; a session is checked as often."""
MOST: Final = 32
"""Streams at once."""
BEGIN: Final = b"retry: 2000\n\n"


def event(name: str, data: JsonValue) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


class Streams:
    """All open streams: bounded in number, and ended with the server."""

    def __init__(self) -> None:
        self._ending = asyncio.Event()
        self._open = 0

    def end_streams(self) -> None:
        """End all streams; no further one begins."""
        self._ending.set()

    def stream_response(self, events: AsyncGenerator[bytes], still: Callable[[], Awaitable[bool]]) -> Response:
        """An answer that lasts until the client leaves, `still()` is false, or the server ends."""
        if self._open >= MOST or self._ending.is_set():
            body = orjson.dumps({"error": f"{MOST} pages are open already; close one."})
            return Response(body, 503, media_type="application/json", headers={"retry-after": "5"})
        return StreamingResponse(self._run(events, still), media_type="text/event-stream")

    async def _run(self, events: AsyncGenerator[bytes], still: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        self._open += 1
        loop = asyncio.get_running_loop()
        ending = loop.create_task(self._ending.wait())
        following: asyncio.Task[bytes] | None = None
        checked = loop.time()
        try:
            yield BEGIN
            while True:
                if loop.time() - checked >= QUIET_S:
                    if not await _allowed(still):
                        yield event("ended", {})
                        return
                    checked = loop.time()
                following = following or loop.create_task(_next(events))
                await asyncio.wait((following, ending), timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
                if ending.done():
                    return
                if not following.done():
                    yield b": quiet\n\n"
                    continue
                try:
                    chunk = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield chunk
        finally:
            self._open -= 1
            # The server cancels at every await from here on. A generator that is cancelled ends by itself.
            waited = [task for task in (ending, following) if task is not None and not task.done()]
            for task in waited:
                task.cancel()
            if waited:
                await asyncio.wait(waited)
            await events.aclose()


async def _next(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


async def _allowed(still: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await still()
    except KeysUnreachable:
        return True  # it was allowed seconds ago; without the bus there is nothing new to see either
