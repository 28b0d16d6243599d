"""Waits until a stream has confirmed each of several messages."""

import asyncio

from pointsman_runtime.bus.link import PubSub


class NotWritten(Exception):
    """The stream rejected a message, or didn't confirm it in time."""


class Confirmations:
    """Those of one batch of messages at a time."""

    def __init__(self, link: PubSub, inbox: str, wait_s: float) -> None:
        """`inbox`: a subject for the server's answers that nothing else subscribes to. `wait_s`: for a whole batch."""
        self._inbox = inbox
        self._wait_s = wait_s
        self._batches = 0
        self._reply_to = ""
        self._left = 0
        self._refused = ""
        self._settled = asyncio.Event()
        link.subscribe(f"{inbox}.*", self._receive)

    def begin_batch(self, count: int) -> str:
        """Begin a batch of `count` messages, at least one; returns the subject that their answers go to."""
        # A late answer to an earlier batch has another subject.
        self._batches += 1
        self._reply_to = f"{self._inbox}.{self._batches}"
        self._left = count
        self._refused = ""
        self._settled.clear()
        return self._reply_to

    async def wait_for_all(self) -> None:
        """Returns once every message of the batch is confirmed. Raises NotWritten."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._settled.wait()
        except TimeoutError:
            raise NotWritten(f"{self._left} messages weren't confirmed within {self._wait_s:g} s") from None
        if self._refused:
            raise NotWritten(f"the stream refused a message: {self._refused}")

    def _receive(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        del reply, headers
        if subject != self._reply_to:
            return
        # An answer without a body means that no stream takes the message.
        if not payload or b'"error"' in payload:
            self._refused = payload[:200].decode(errors="replace") or "no stream takes it"
            self._settled.set()
            return
        self._left -= 1
        if self._left == 0:
            self._settled.set()
