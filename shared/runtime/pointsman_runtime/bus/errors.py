"""Errors of the bus, each with its facts. All but NoReply are raised at once."""

from pointsman_runtime.telling.logs import Quotable


class BusError(Quotable):
    """Base of everything that the bus raises."""


class BusDisconnected(BusError):
    """There is no connection to the NATS server; nothing was sent and nothing is buffered."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not connected to NATS: {reason}")
        self.reason = reason


class BusCongested(BusError):
    """The server reads too slowly: more than `limit` bytes wait in this process."""

    def __init__(self, unsent: int, limit: int) -> None:
        super().__init__(f"{unsent} bytes wait to be sent, the limit is {limit}")
        self.unsent = unsent
        self.limit = limit


class PayloadTooLarge(BusError):
    """The message exceeds the server's `max_payload`; sent, it would cost the connection."""

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(f"message of {size} bytes; the server takes {limit}")
        self.limit = limit
        self.size = size


class MessageTooLarge(BusError):
    """A journey or an event exceeds the limit of the contracts (64 KiB)."""

    def __init__(self, type_id: str, limit: int, size: int) -> None:
        super().__init__(f"{type_id} of {size} bytes; the contract allows {limit}")
        self.type_id = type_id
        self.limit = limit
        self.size = size


class NoListener(BusError):
    """No process subscribes to the subject of a request, or no live replica of a stage is known."""

    def __init__(self, who: str) -> None:
        super().__init__(f"no process answers for {who}")
        self.who = who


class NoReply(BusError):
    """The deadline of a request passed without an answer."""

    def __init__(self, subject: str, waited_s: float) -> None:
        super().__init__(f"no answer from {subject} within {waited_s:g} s")
        self.subject = subject
        self.waited_s = waited_s
