"""A subscription to signals, events or questions: decodes each message and hands it to a function."""

from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import ValidationError

from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.link import PubSub
from pointsman_runtime.bus.mailbox import Delivery, Fifo
from pointsman_runtime.telling.logs import Log
from pointsman_runtime.telling.tallies import Tallies, Tally

M = TypeVar("M")
Read = Callable[[bytes], M]
"""Reads a message as it arrived. Raises `pydantic.ValidationError`."""

_log = Log("bus")


class Listener(Generic[M]):
    """A message that can't be decoded or handled is counted and logged; the subscription goes on."""

    def __init__(
        self,
        link: PubSub,
        tallies: Tallies,
        tally: Tally,
        kinds: tuple[type[M], ...],
        read: Read[M],
        handler: Callable[[M], bytes | None],
    ) -> None:
        """`kinds`: classes of objects that `handler` takes; `read` makes one of a message that arrives as bytes. The
        bytes that `handler` returns are sent to the message's reply subject."""
        self._link = link
        self._tallies = tallies
        self._tally = tally
        self._kinds = kinds
        self._read = read
        self._handler = handler
        self.mailbox: Fifo | None = None
        """Has the messages that wait for their turn."""

    def told(self, subject: str, message: M) -> None:
        """Handle a message of this process in this very call, unless others wait."""
        mailbox = self.mailbox
        if mailbox is not None and mailbox.busy:
            mailbox.take(Delivery(subject, "", b"", b"", message))
            return
        try:
            self._handler(message)
        except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
            self._failed(error)
        else:
            self._tally.handled += 1

    def handle(self, delivery: Delivery) -> None:
        """Handle one message of the mailbox."""
        decoded = delivery.message
        if not isinstance(decoded, self._kinds):
            try:
                delivery.message = decoded = self._read(delivery.payload)
            except ValidationError as error:
                self._tallies.malformed(self._tally, delivery.subject, delivery.payload, error)
                return
        try:
            answer = self._handler(decoded)
            if answer is not None and delivery.reply:
                self._link.publish(delivery.reply, answer)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
        else:
            self._tally.handled += 1

    def _failed(self, error: Exception) -> None:
        self._tally.failed += 1
        event = "unsent" if isinstance(error, BusError) else "handler_failed"
        _log.error(event, error, subscription=self._tally.name)
