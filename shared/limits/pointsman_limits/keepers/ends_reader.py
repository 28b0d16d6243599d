"""Reads the ends of requests from the stream of events, from any place on, by batches that need no consumer.

Spending is read only from here: the stream has each end, whichever process was stopped in the meantime.
`BudgetCharging` knows the ends that it has twice.
https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-31.md
"""

import asyncio
from typing import Final

import orjson
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY, subject
from pointsman_limits.domain.budgets.charging import End
from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.link import PubSub
from pointsman_runtime.jetstream.events import Events
from pointsman_runtime.jetstream.stores import EVENT_STREAM

BATCH: Final = 512
"""Most ends in one batch."""
ANSWER_S: Final = 2.0
_GET: Final = f"$JS.API.DIRECT.GET.{EVENT_STREAM}"
_SEQUENCE: Final = b"\r\nNats-Sequence:"
_PENDING: Final = b"\r\nNats-Num-Pending:"
_NOTHING: Final = "404"
_END: Final = "204"
UNREADABLE: Final = (NatsError, JetStreamError, BusError, OSError, TimeoutError)
"""Temporary errors: the server is away, or JetStream is."""


class EndsReader:
    """One of a process."""

    def __init__(self, events: Events, link: PubSub, inbox: str) -> None:
        """`inbox`: a subject for the answers, without other subscribers."""
        self._events: Final = events
        self._link: Final = link
        self._inbox: Final = inbox
        self._subject: Final = subject(ResponseCompleted, ANY)
        self._asked = 0

    async def find_stream(self) -> tuple[str, int]:
        """When the stream was created, and its last sequence. Raises one of `UNREADABLE`."""
        info = await self._events.make_event_stream()
        return str(info.created or ""), info.state.last_seq

    async def read_after(self, sequence: int) -> tuple[list[End], int]:
        """The ends after a sequence, at most `BATCH`, and the number of further ones. Raises one of `UNREADABLE`."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        ends: list[End] = []

        def take(headers: bytes, payload: bytes) -> None:
            status = message_headers.status(headers)
            if status is None or not status.isdecimal():
                ends.append(End(int(message_headers.find(headers, _SEQUENCE) or 0), payload))
            elif not done.done():
                if status in (_END, _NOTHING):
                    done.set_result(int(message_headers.find(headers, _PENDING) or 0))
                else:
                    done.set_exception(BusError(f"the stream can't be read: status {status}"))

        # A late answer has another subject.
        self._asked += 1
        inbox = f"{self._inbox}.{self._asked}"
        sid = self._link.subscribe(inbox, lambda _subject, _reply, headers, payload: take(headers, payload))
        try:
            query = {"seq": sequence + 1, "next_by_subj": self._subject, "batch": BATCH}
            self._link.publish(_GET, orjson.dumps(query), inbox)
            async with asyncio.timeout(ANSWER_S):
                following = await done
        finally:
            self._link.unsubscribe(sid)
        return ends, following
