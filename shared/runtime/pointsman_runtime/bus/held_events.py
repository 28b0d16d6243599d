"""Events that the stream hasn't confirmed yet. Pure: time is an argument.

A stream confirms a message only to a publisher that asks for it, and each answer costs as much as the message. So few
messages ask, and the others are proven by counting: the answer has the message's number in the stream. When it is as
many higher than the last answer's as messages were sent since, every one of them is stored.

The numbers also count other publishers' messages. While others publish, the first and the last message of each write
ask, which leaves only those between them to be proven by counting. Where the numbers prove nothing, the messages are
sent again, each with a question of its own: by their ids the stream recognizes those that it has.

In one case a proof is wrong: the stream misses messages between two that ask, and stores as many of others there. While
others publish, these two are the ends of one write. Readers see such a loss as a gap in the publisher's numbers.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from pointsman_contracts.event_loss import EventsLost, LostEvents
from pointsman_contracts.headers import MESSAGE_ID

ASK_EVERY_S: Final = 0.1
"""How often a message asks, at least, while this is the stream's only publisher."""
ALONE_AFTER: Final = 20
"""So many answers without another publisher's message between them make this the only one."""
PROBE: Final = 1
"""Messages that are sent again at once while the stream doesn't answer."""
MOST_AGAIN: Final = 256
"""The same while it does."""
AGAIN_AFTER_S: Final = 0.5
"""Seconds until messages that the stream refused are sent again."""
MOST_TOLD: Final = 200
"""Subjects and sources of lost events that one message has room for."""
MOST_BYTES: Final = 64 * 2**20
"""Bytes of messages that are held at most."""

Message = tuple[str, str, bytes]
"""Subject, header block as text, and payload."""

Why = Literal["too_many", "refused", "too_large"]
"""Why a message is lost: more are held than may be, the stream refused it for good, the server takes none so large."""

_ID: Final = f"\r\n{MESSAGE_ID}: "


class _Ask(NamedTuple):
    message: int
    """Index."""
    at: float


class Again(NamedTuple):
    """A message to send again."""

    token: str
    """Names it in the answer."""
    message: Message


class _AtMs(msgspec.Struct):
    at_ms: int = 0


class HeldEvents:
    """The events of one connection, from their publication until the stream has them, or they are lost."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        """`most`: messages that are held while the stream takes none; beyond it the oldest are lost."""
        self._most: Final = most
        self._most_bytes: Final = most_bytes
        self._unsent: Final[deque[Message]] = deque()
        self._sent: Final[deque[Message]] = deque()
        """Sent once and not proven. They have indexes without gaps; the last one's is `_next - 1`."""
        self._next = 0
        self._asked: Final[deque[_Ask]] = deque()
        """Those of them whose answer is due, in order."""
        self._asked_at = -math.inf
        self._stored: tuple[int, int] | None = None
        """Index of the message before `_sent[0]` and its number in the stream; None where that isn't known."""
        self._links = 0
        """Answers in a row without another publisher's message between them."""
        self._owed: Final[deque[Message]] = deque()
        """Sent, and perhaps not stored."""
        self._bytes = 0
        """The size of `_owed` and `_unsent` together."""
        self._again: Final[dict[str, Message]] = {}
        """Sent again, with the answer due, by token."""
        self._again_at = -math.inf
        self._tokens = 0
        self._window = PROBE
        self._confirmed_at = -math.inf
        self._awaited: Final[dict[str, Callable[[], None]]] = {}
        """Called once a message is stored, by its header block."""
        self._losses: Final[dict[tuple[str, str], LostEvents]] = {}
        """By subject and source."""
        self._lost_at = -math.inf
        self.lost: Final[dict[Why, int]] = {"too_many": 0, "refused": 0, "too_large": 0}
        """Messages lost so far, by why."""
        self.repeated = 0
        """Messages that were sent again so far."""

    def __len__(self) -> int:
        return len(self._unsent) + len(self._sent) + len(self._owed) + len(self._again)

    @property
    def unsent_count(self) -> int:
        """Messages that wait for a connection."""
        return len(self._unsent)

    def await_message(self, headers: str, done: Callable[[], None]) -> None:
        """Call `done` once the held message with these headers is stored; never if it is lost."""
        self._awaited[headers] = done

    def keep_unsent(self, messages: Sequence[Message], now: float) -> None:
        """There is no connection to send these to."""
        self._unsent.extend(messages)
        self._bytes += sum(map(_size, messages))
        self._shrink(now)

    def take_unsent(self, at_most: int, max_payload: int, now: float) -> list[Message]:
        """The oldest messages that wait for a connection; those that the server doesn't take are lost."""
        taken: list[Message] = []
        while self._unsent and len(taken) < at_most:
            message = self._unsent.popleft()
            size = _size(message)
            self._bytes -= size
            if size > max_payload:
                self._lose(message, "too_large", now)
            else:
                taken.append(message)
        return taken

    def note_sent(self, messages: Sequence[Message], now: float) -> tuple[int, tuple[int, ...]]:
        """Note that these messages, one or more, are sent together for the first time. Returns the first one's index,
        and the positions of the messages that are to ask, for the token `index + position`."""
        first = self._next
        last = len(messages) - 1
        self._next += last + 1
        self._sent.extend(messages)
        if self._stored is None or self._links < ALONE_AFTER:
            positions = (0, last) if last else (0,)
        elif self._awaited or now - self._asked_at >= ASK_EVERY_S:
            positions = (last,)
        else:
            return first, ()
        self._asked_at = now
        self._asked.extend([_Ask(first + position, now) for position in positions])
        return first, positions

    def confirm_event(self, token: str, number: int, now: float) -> None:
        """The stream has a message, under this number."""
        self._confirmed_at = now
        if not token.isdecimal():
            message = self._again.pop(token, None)
            if message is None:
                return
            if not self._again:
                self._window = MOST_AGAIN
                self._again_at = -math.inf
            if self._awaited:
                self._end_wait(message)
            return
        index = int(token)
        count = index - (self._next - len(self._sent)) + 1
        if not 0 < count <= len(self._sent):
            return  # the answer is late
        # Answers come in order. Where an earlier one didn't come, messages were missed, and as many of others may have
        # come between.
        skipped = self._asked[0].message < index if self._asked else False
        while self._asked and self._asked[0].message <= index:
            self._asked.popleft()
        linked = not skipped and self._stored is not None and number - self._stored[1] == count
        self._links = self._links + 1 if linked else 0
        self._stored = index, number
        proven = count if linked else 1
        self._owe([self._sent.popleft() for _ in range(count - proven)], now)
        for _ in range(proven):
            message = self._sent.popleft()
            if self._awaited:
                self._end_wait(message)

    def note_refused(self, token: str, now: float, *, for_good: bool) -> None:
        """The stream didn't take a message. `for_good`: nor will it ever."""
        if token.isdecimal():
            if self._next - len(self._sent) <= int(token) < self._next:
                self._doubt(now)
            return
        message = self._again.pop(token, None)
        if message is None:
            return
        if for_good:
            self._lose(message, "refused", now)
        else:
            self._again_at = now
            self._window = PROBE
            self._owe([message], now)

    def note_interruption(self, now: float) -> None:
        """The connection was lost: answers that are due don't come any more."""
        self._take_back(now)
        self._doubt(now)

    def forget_sent(self) -> None:
        """Nothing will be known about any of those that were sent."""
        self._bytes -= sum(map(_size, self._owed))
        for message in (*self._sent, *self._owed, *self._again.values()):
            self._end_wait(message)
        for each in (self._sent, self._asked, self._owed):
            each.clear()
        self._again.clear()
        self._stored = None

    def due_again(self, now: float, wait_s: float) -> list[Again]:
        """The messages to send again now, where an answer takes `wait_s` seconds at most."""
        if self._asked and now - self._asked[0].at > wait_s:
            self._doubt(now)
        if self._again and now - self._again_at > wait_s:
            self._take_back(now)
        due: list[Again] = []
        if self._sent and not self._asked and now - self._asked_at >= ASK_EVERY_S:
            # None came after it that could have asked for them all.
            self._asked_at = now
            self._asked.append(_Ask(self._next - 1, now))
            due.append(Again(f"{self._next - 1}", self._sent[-1]))
        if self._owed and not self._again and now - self._again_at >= AGAIN_AFTER_S:
            self._again_at = now
            for _ in range(min(self._window, len(self._owed))):
                message = self._owed.popleft()
                self._bytes -= _size(message)
                self._tokens += 1
                self._again[f"r{self._tokens}"] = message
            self.repeated += len(self._again)
            due += [Again(token, message) for token, message in self._again.items()]
        return due

    def take_losses(self) -> tuple[LostEvents, ...]:
        """The losses that no event has told yet, once the stream takes events again; the caller publishes one."""
        if not self._losses or self._confirmed_at <= self._lost_at:
            return ()
        told = [*self._losses][:MOST_TOLD]
        return (*map(self._losses.pop, told),)

    def lost_at_end(self) -> tuple[LostEvents, ...]:
        """Everything that is held or untold, as losses: the process ends."""
        for message in (*self._again.values(), *self._owed, *self._sent, *self._unsent):
            self._note(message)
        return (*self._losses.values(),)

    def _doubt(self, now: float) -> None:
        """Nothing is known about the messages sent since the last answer."""
        self._owe(self._sent, now)
        self._sent.clear()
        self._asked.clear()
        self._stored = None
        self._links = 0

    def _take_back(self, now: float) -> None:
        """No answer came about the messages that were sent again."""
        self._owed.extendleft(reversed(self._again.values()))
        self._bytes += sum(map(_size, self._again.values()))
        self._again.clear()
        self._window = PROBE
        self._shrink(now)

    def _owe(self, messages: Sequence[Message], now: float) -> None:
        self._owed.extend(messages)
        self._bytes += sum(map(_size, messages))
        self._shrink(now)

    def _shrink(self, now: float) -> None:
        waiting = len(self._owed) + len(self._unsent)
        while waiting and (waiting + len(self._again) > self._most or self._bytes > self._most_bytes):
            waiting -= 1
            oldest = (self._owed or self._unsent).popleft()
            self._bytes -= _size(oldest)
            self._lose(oldest, "too_many", now)

    def _lose(self, message: Message, why: Why, now: float) -> None:
        self._lost_at = now
        self.lost[why] += 1
        self._note(message)
        self._awaited.pop(message[1], None)

    def _end_wait(self, message: Message) -> None:
        done = self._awaited.pop(message[1], None)
        if done is not None:
            done()

    def _note(self, message: Message) -> None:
        subject, headers, payload = message
        if _type_of(subject) == EventsLost.address.type_id:
            # Nothing else tells of the losses in it.
            for each in EventsLost.decode(payload).lost:
                self._add(each)
        _, _, name = headers.partition(_ID)
        _, source, sequence = name.strip().rsplit(":", 2)
        at_ms = msgspec.json.decode(payload, type=_AtMs).at_ms
        number = int(sequence) if sequence.isdecimal() else 0
        self._add(
            LostEvents(subject=subject, source=source, count=1, first=number, last=number, from_ms=at_ms, to_ms=at_ms)
        )

    def _add(self, lost: LostEvents) -> None:
        key = lost.subject, lost.source
        known = self._losses.get(key)
        self._losses[key] = lost if known is None else known.merge_with(lost)


def _size(message: Message) -> int:
    return len(message[1]) + len(message[2])


def _type_of(subject: str) -> str:
    """`response.completed.v1` of `pm.evt.response.completed.v1.<pool>`."""
    return ".".join(subject.split(".")[2:5])
