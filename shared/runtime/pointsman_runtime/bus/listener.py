"""A subscription to signals, events or questions: decodes each message and hands it to a function."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import ValidationError

from pointsman_contracts.message import Message
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.bus.mailbox import Delivery, Tally
from pointsman_runtime.telling.logs import Log

if TYPE_CHECKING:
    from pointsman_runtime.bus.bus import Bus

M = TypeVar("M", bound=Message)

_log = Log("bus")


class Listener(Generic[M]):
    """What can't be decoded or handled is counted and told; the next message comes all the same."""

    def __init__(self, bus: "Bus", tally: Tally, message: type[M], handler: Callable[[M], bytes | None]) -> None:
        """What `handler` returns is sent to whoever asked."""
        self._bus = bus
        self._tally = tally
        self._message = message
        self._handler = handler

    def handle(self, delivery: Delivery) -> None:
        """Handle one message."""
        decoded = delivery.message
        if not isinstance(decoded, self._message):
            try:
                delivery.message = decoded = self._message.decode(delivery.payload)
            except ValidationError as error:
                self._bus.malformed(self._tally, delivery.subject, delivery.payload, error)
                return
        try:
            answer = self._handler(decoded)
            if answer is not None and delivery.reply:
                self._bus.link.publish(delivery.reply, answer)
        except BusError as error:
            self._failed("unsent", error)
        except Exception as error:  # noqa: BLE001 - one bad message must not end the subscription
            self._failed("handler_failed", error)
        else:
            self._tally.handled += 1

    def _failed(self, event: str, error: Exception) -> None:
        self._tally.failed += 1
        _log.error(event, error, subscription=self._tally.name)
