"""Clients that read long streams and compare every character with what one engine alone would have written."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from pointsman_testing.continuing_engine import Body
from pointsman_testing.continuing_server import ASKED, MODEL, ContinuingServer

PATH: Final = "/v1/chat/completions"
LAST_S: Final = 300.0
"""The last streams may take so long. No single read is timed: a client that stands still would end all its streams,
though the bytes are in its sockets."""


def read_text(body: bytes) -> str:
    """The text of a stream of chats, or of a document."""
    if body[:1] == b"{":
        return str(json.loads(body)["choices"][0]["message"]["content"])
    lines = (line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: {"))
    choices = (choice for line in lines for choice in json.loads(line).get("choices", ()))
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@dataclass
class WholeStreams:
    """Starts a stream every `1 / rate` seconds; every `whole_every`-th request isn't streamed."""

    door: str
    rate: float
    tokens: int
    whole_every: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """`equal`, `error`, or `text` of answers that differ; of any other kind the problem."""
    missing: int = 0
    """Characters that clients lack."""
    doubled: int = 0
    """Characters beyond those of the whole text."""
    longest_s: float = 0.0
    stood_still_s: float = 0.0
    """The longest time for which this process got no CPU time, or was busy."""
    _running: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])
    _sender: "asyncio.Task[None] | None" = None

    async def __aenter__(self) -> "WholeStreams":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Begin no more, and wait until each has ended."""
        await self.finish()
        await self._http.close()

    async def finish(self) -> None:
        """Begin no more streams, and wait for those under way."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=LAST_S)
            for task in left:
                task.cancel()
            self.outcomes.update({"never ended": len(left)} if left else {})

    @property
    def under_way(self) -> int:
        """Streams that haven't ended."""
        return len(self._running)

    async def _send(self) -> None:
        due = time.monotonic()
        number = 0
        while True:
            # Requests that a stall of this process skipped aren't made up for.
            due = max(due + 1 / self.rate, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.stood_still_s = max(self.stood_still_s, time.monotonic() - due)
            task = asyncio.create_task(self._ask(number))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            number += 1

    async def _ask(self, number: int) -> None:
        whole = bool(self.whole_every) and number % self.whole_every == self.whole_every - 1
        body: Body = {
            **ASKED,
            "model": MODEL,
            "messages": [{"role": "user", "content": f"question {number}"}],
            "max_tokens": self.tokens,
        }
        body |= {"stream": False} if whole else {"stream": True}
        if whole:
            del body["stream_options"]
        began = time.monotonic()
        try:
            async with self._http.post(self.door + PATH, json=body) as answer:
                got = await answer.read()
                if answer.status != 200:
                    self.outcomes[f"status {answer.status}: {got[:200]!r}"] += 1
                    return
        except (aiohttp.ClientError, TimeoutError) as error:
            self.outcomes[type(error).__name__] += 1
            return
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        text = read_text(got)
        asked = {**body, **ASKED, "stream": True}
        expected = read_text(ContinuingServer().engine.stream(PATH, asked))
        if b'"error"' in got and text != expected:
            self.outcomes["error within the stream"] += 1
        else:
            self.outcomes["equal" if text == expected else "text"] += 1
        self.missing += max(0, len(expected) - len(text))
        self.doubled += max(0, len(text) - len(expected))
