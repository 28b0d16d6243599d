"""Sends the events of one connection until the stream has confirmed them (`held_events.py` decides which to send)."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from pointsman_contracts.subjects import owed_subject
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.held_events import HeldEvents, Message
from pointsman_runtime.telling.lag import LAG

TICK_S: Final = 0.1
"""How often events are looked at that aren't confirmed yet."""
ANSWER_S: Final = 2.0
"""Seconds within which the stream answers. It recognizes a repetition for longer than that."""
_FOR_GOOD: Final = frozenset((10054, 10097))
"""Error codes of the server for a message that the stream never takes: larger than its owner allows, with a header that
it can't read."""

Publish = Callable[[str, bytes, str, bytes], None]
"""Same as `Link.publish`."""


class _Error(msgspec.Struct):
    err_code: int = 0


class _Answer(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None


_read: Final = msgspec.json.Decoder(_Answer).decode


class EventKeeper:
    """Answers arrive on subjects below `inbox`."""

    def __init__(self, held: HeldEvents, inbox: str) -> None:
        self.held: Final = held
        self.inbox: Final = inbox
        self._reply_to: Final = f"{inbox}."
        self._publish: Publish | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._confirming = True

    def set_confirming(self, confirming: bool) -> None:
        """Whether the stream takes events that are sent again. Without that, each event is sent once, and none is
        known to be stored."""
        self._confirming = confirming
        if not confirming:
            self.held.forget_sent()

    def attach_connection(self, publish: Publish) -> None:
        self._publish = publish
        self._watch()

    def detach_connection(self) -> None:
        """The connection is lost, and with it every answer that is due."""
        self._publish = None
        self.held.note_interruption(asyncio.get_running_loop().time())

    def note_sent(self, messages: list[Message]) -> list[tuple[int, str]]:
        """These events, at least one, are sent together for the first time; returns the positions of those that ask
        for an answer, each with its reply subject."""
        if not self._confirming:
            return []
        first, asking = self.held.note_sent(messages, asyncio.get_running_loop().time())
        if self._timer is None:
            self._watch()
        return [(position, f"{self._reply_to}{first + position}") for position in asking]

    def await_event(self, headers: str, done: Callable[[], None]) -> None:
        """Call `done` once the event with this header block, which was just published, is stored; at once where
        nothing is known about events that were sent."""
        if self._confirming:
            self.held.await_message(headers, done)
        else:
            done()

    def receive_answer(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        """An answer of the stream; one without a payload says that no stream listens."""
        del reply, headers
        now = asyncio.get_running_loop().time()
        token = subject[len(self._reply_to) :]
        try:
            answer = _read(payload) if payload else _Answer(error=_Error())
        except msgspec.DecodeError:
            return  # no server sent it
        if answer.error is None:
            self.held.confirm_event(token, answer.seq, now)
        else:
            self.held.note_refused(token, now, for_good=answer.error.err_code in _FOR_GOOD)
        self._send_again(now)

    async def wait_until_settled(self, within_s: float) -> bool:
        """Wait until no event is held, at most so long; whether none is."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while len(self.held) and loop.time() < until:  # noqa: ASYNC110 - answers set no event
            await asyncio.sleep(0.01)
        return not len(self.held)

    def close(self) -> None:
        """Send nothing any more."""
        self._publish = None
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if len(self.held) and self._publish is not None:
            self._watch()
            self._send_again(asyncio.get_running_loop().time())

    def _send_again(self, now: float) -> None:
        publish = self._publish
        if publish is None:
            return
        for token, (subject, headers, payload) in self.held.due_again(now, ANSWER_S + LAG.slack_s(now)):
            try:
                publish(owed_subject(subject), payload, f"{self._reply_to}{token}", headers.encode())
            except BusError:
                return  # no answer comes, so it is sent again
