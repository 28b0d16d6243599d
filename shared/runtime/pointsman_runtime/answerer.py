"""A subscription to questions: decodes each one, and sends what a function answers."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import ValidationError

from pointsman_contracts.message import Message
from pointsman_runtime.errors import BusError
from pointsman_runtime.logs import Log
from pointsman_runtime.mailbox import Delivery, Tally

if TYPE_CHECKING:
    from pointsman_runtime.bus import Bus

M = TypeVar("M", bound=Message)

_log = Log("bus")


class Answerer(Generic[M]):
    """What can't be decoded or answered is counted and told; the asker's time runs out."""

    def __init__(self, bus: "Bus", tally: Tally, message: type[M], handler: Callable[[M], bytes]) -> None:
        self._bus = bus
        self._tally = tally
        self._message = message
        self._handler = handler

    def handle(self, delivery: Delivery) -> None:
        """Answer one message."""
        try:
            decoded = self._message.decode(delivery.payload)
        except ValidationError as error:
            self._bus.malformed(self._tally, delivery.subject, delivery.payload, error)
            return
        try:
            answer = self._handler(decoded)
            if delivery.reply:
                self._bus.link.publish(delivery.reply, answer)
        except BusError as error:
            self._tally.failed += 1
            _log.error("unsent", error, subscription=self._tally.name)
            return
        except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
            self._tally.failed += 1
            _log.error("handler_failed", error, subscription=self._tally.name)
            return
        self._tally.handled += 1
