"""The clients of a cell: steady traffic of small chats, and how each ended."""

import asyncio
import itertools
import json
import time
from typing import Final

import aiohttp
import msgspec

from pointsman_testing.unruly.engine import CHAT

PATIENCE_S: Final = 30.0
"""A client that waits for longer has failed."""
_PADDING: Final = "Tell me, in a few words, why the points of a railway are heated in winter."
_numbers = itertools.count(1)


class ClientOutcome(msgspec.Struct):
    """One request as its client saw it; times are of `time.monotonic()`."""

    request: str
    sent: float
    took: float = 0.0
    status: int = 0
    """0: no answer at all."""
    begun: bool = False
    """Whether the head of a good answer came."""
    whole: bool = False
    """Whether a good answer came, with its end."""
    problem: str = ""


class Clients:
    """`rate` requests a second, independent of earlier ones, until `stop`; `burst` at the same moment, so that as many
    engines are needed."""

    def __init__(
        self, http: aiohttp.ClientSession, door: str, model: str, *, stream: bool, rate: float, burst: int
    ) -> None:
        self.asked: list[ClientOutcome] = []
        """In the order of sending."""
        self.tokens = 4
        self._http = http
        self._url = door + CHAT
        self._model = model
        self._stream = stream
        self._rate = rate
        self._burst = burst
        self._open: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._sending = asyncio.create_task(self._send())

    async def stop(self) -> None:
        """Send no more, and wait until every request has ended."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        if self._open:
            await asyncio.wait(self._open)

    async def _send(self) -> None:
        begun = time.monotonic()
        for count in itertools.count(1):
            for _ in range(self._burst):
                task = asyncio.create_task(self._ask())
                self._open.add(task)
                task.add_done_callback(self._open.discard)
            await asyncio.sleep(max(0.0, begun + count * self._burst / self._rate - time.monotonic()))

    async def _ask(self) -> None:
        request = f"{self._model}r{next(_numbers)}"
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"{request} {_PADDING}"}],
            "max_tokens": self.tokens,
            "stream": self._stream,
        }
        asked = ClientOutcome(request, time.monotonic())
        self.asked.append(asked)
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self._http.post(
                    self._url,
                    data=json.dumps(body),
                    headers={"content-type": "application/json", "x-request-id": request},
                ) as answer,
            ):
                asked.status, asked.begun = answer.status, answer.status == 200
                text = await answer.text()
            asked.whole = asked.begun and _is_whole(text, stream=self._stream)
            asked.problem = "" if asked.whole else text[-300:]
        except (aiohttp.ClientError, TimeoutError) as error:
            asked.problem = f"{type(error).__name__}: {error}"
        asked.took = time.monotonic() - asked.sent


def _is_whole(text: str, *, stream: bool) -> bool:
    if stream:
        return text.endswith("data: [DONE]\n\n") and '"error"' not in text
    try:
        return bool(json.loads(text).get("choices"))
    except ValueError:
        return False
