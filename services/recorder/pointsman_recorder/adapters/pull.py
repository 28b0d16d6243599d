"""A pull consumer of a stream, read in batches on the journey's connection.

nats-py parses each message with regular expressions and hands it through a queue, about 25 µs of CPU; a recorder takes
three messages a request. Protocol: https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

import asyncio
import json
from typing import Final, NamedTuple

from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.link import Link
from pointsman_runtime.bus.wire import Intake, Raw
from pointsman_runtime.telling.lag import LAG

BATCH: Final = 1024
"""Messages that are handed over at once, and that the server may send ahead."""
GATHER_S: Final = 0.2
"""Seconds that the first message of a batch waits for others: one transaction and one sync to disk serve them all."""
LOOK_S: Final = 10.0
"""Seconds that a request for messages lives at the server; then the recorder makes another one."""
HEARTBEAT_S: Final = 2.0
"""How often the server says that it lives while it has no messages."""
SILENT_S: Final = 6.0
"""A server that says nothing for so long has forgotten the request, or is gone: the consumer may be on another server
than the one that the connection is to."""
_PLAIN_TOKENS: Final = 9
"""Tokens of an acknowledgement subject without a JetStream domain; with one there are two more before the stream."""
_PENDING_NAME: Final = b"\r\nNats-Pending-Messages:"
_ENDED: Final = ("404", "408")
"""Statuses of a request for messages that came to its end without all that it asked for."""
_LIVES: Final = "100"
"""Status of a heartbeat."""
_LAST_NAME: Final = b"\r\nNats-Last-Consumer:"
"""In a heartbeat: the number of the consumer's last delivery."""


class Place(NamedTuple):
    """The numbers of a message, which are tokens of its reply subject: its acknowledgement goes there."""

    sequence: int
    """In the stream."""
    delivery: int
    """Among the deliveries of the consumer, without gaps."""
    stored_ns: int
    """When the stream got it, unix nanoseconds."""
    following: int
    """Messages of the stream that follow it."""


def place_of(message: Raw) -> Place:
    """A message's place. Raises ValueError for one that no stream sent."""
    tokens = message[1].split(b".")
    first = 5 if len(tokens) == _PLAIN_TOKENS else 7
    sequence, delivery, stored_ns, following = map(int, tokens[first : first + 4])
    return Place(sequence, delivery, stored_ns, following)


class Missed(Exception):
    """Messages didn't arrive, or the server sends no more. Read again from the last one that is kept."""


class Pull:
    """One consumer from `open` to `close`. Every message arrives once and in order, or `next` raises Missed."""

    def __init__(self, link: Link, inbox: str) -> None:
        """`inbox`: a subject for the messages that nothing else subscribes to."""
        self._link = link
        self._inbox = inbox
        self._lives = 0
        self._sid: int | None = None
        self._ask_at = ""
        self._deliver_to = ""
        self._delivered = 0
        self._asked = 0
        """Messages that the server may send, and those of them that came and weren't handed over."""
        self._taken: Final[list[Raw]] = []
        self._enough = BATCH
        """Messages that wait for no others."""
        self._failure = ""
        self._silence: asyncio.Timeout | None = None
        """Runs while nothing is here."""
        self._some = asyncio.Event()
        self._full = asyncio.Event()

    def open(self, stream: str, consumer: str, delivered: int) -> None:
        """Begin to read. `delivered`: how many messages this consumer was sent in its life."""
        self._lives += 1
        self._ask_at = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._deliver_to = f"{self._inbox}.{self._lives}"
        self._delivered = delivered
        self._failure = ""
        self._taken.clear()
        self._sid = self._link.gather(self._deliver_to, Intake(self._taken, self._arrived, self._told))
        self.renew_request()

    def close(self) -> None:
        """Read no more."""
        if self._sid is not None:
            self._link.unsubscribe(self._sid)
            self._sid = None

    def renew_request(self) -> None:
        """Ask again: a server that was away has forgotten the request."""
        self._asked = len(self._taken)
        self._some.set()

    def expect_messages(self, count: int) -> None:
        """So many messages are on their way that wait for no others once they are here."""
        self._enough = min(count, BATCH)
        if len(self._taken) >= self._enough:
            self._full.set()

    async def next_messages(self) -> list[Raw]:
        """The next messages in order; empty when none came for `LOOK_S`.

        Raises Missed, and what `Link.publish` raises.
        """
        self._some.clear()
        self._full.clear()
        self._ask_for_batch()
        if not self._taken and not self._failure:
            try:
                async with asyncio.timeout(_silent_s()) as self._silence:
                    await self._some.wait()
            except TimeoutError:
                self._fail_pull("the server is silent")
            finally:
                self._silence = None
        if 0 < len(self._taken) < self._enough and not self._failure:
            try:
                async with asyncio.timeout(GATHER_S):
                    await self._full.wait()
            except TimeoutError:
                pass  # the batch is complete for now
        if self._failure:
            raise Missed(self._failure)
        taken = self._taken.copy()
        self._taken.clear()
        # Of those that were expected, some may still come; then they wait for others again.
        self._enough = BATCH
        self._asked -= len(taken)
        self._delivered += len(taken)
        # Numbers of deliveries have no gaps: where the last one is another, a message was lost on its way.
        if taken and (last := _delivery_of(taken[-1])) != self._delivered:
            raise Missed(_not_all(last))
        return taken

    def _ask_for_batch(self) -> None:
        """Let the server send as many as may wait here."""
        here = len(self._taken)
        self._asked = max(self._asked, here)
        free = BATCH - self._asked
        if free >= BATCH // 2 or self._asked == here:
            request = {"batch": free, "expires": int(LOOK_S * 1e9), "idle_heartbeat": int(HEARTBEAT_S * 1e9)}
            self._link.publish(self._ask_at, json.dumps(request).encode(), self._deliver_to)
            self._asked += free

    def _arrived(self) -> None:
        self._some.set()
        if len(self._taken) >= self._enough:
            self._full.set()

    def _told(self, subject: str, reply: str, headers: bytes, payload: bytes) -> None:
        """The server's status message about a request for messages."""
        del subject, reply, payload
        status = message_headers.status(headers)
        if status == _LIVES:
            # A message that went to a lost connection shows here, or by a later message, which may never come: the
            # ledger gets none while the recorder waits until it has read the last one.
            last = message_headers.find(headers, _LAST_NAME)
            if last is not None and last.isdecimal() and int(last) > self._delivered + len(self._taken):
                self._fail_pull(_not_all(last))
            if self._silence is not None and not self._silence.expired():
                self._silence.reschedule(asyncio.get_running_loop().time() + _silent_s())
        elif status in _ENDED:
            left = message_headers.find(headers, _PENDING_NAME)
            self._asked = self._asked - int(left) if left is not None and left.isdecimal() else len(self._taken)
            self._some.set()
        else:
            # The consumer is gone, its leader moves, nothing answers: what comes next isn't known.
            self._fail_pull(f"the server sends no more: status {status}")

    def _fail_pull(self, words: str) -> None:
        self._failure = self._failure or words
        self._some.set()
        self._full.set()


def _not_all(last: int | str) -> str:
    return f"of the consumer's messages up to {last}, not all arrived"


def _silent_s() -> float:
    return SILENT_S + LAG.slack_s(asyncio.get_running_loop().time())


def _delivery_of(message: Raw) -> int:
    try:
        return place_of(message).delivery
    except ValueError:
        raise Missed("another sender's message came among the consumer's") from None
