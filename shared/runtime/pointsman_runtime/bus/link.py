"""The transport that the bus needs: a NATS connection, or the in-memory server of the tests."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pointsman_runtime.bus.wire import Intake, Receiver


class PubSub(Protocol):
    """The calls that a link and `FanOut` share."""

    def subscribe(self, subject: str, receiver: Receiver, queue: str = "") -> int:
        """Subscribe now and after every reconnection; returns the id to unsubscribe with."""
        ...

    def unsubscribe(self, sid: int) -> None:
        """End a subscription. Messages on their way are dropped."""
        ...

    def publish(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """Send, or raise BusDisconnected, BusCongested or PayloadTooLarge at once."""
        ...


class Link(PubSub, Protocol):
    """A way to publish and subscribe that may come and go."""

    on_connected: Callable[[], None]
    """Called after every (re)connection, once all subscriptions are in place."""
    on_disconnected: Callable[[str], None]
    """Called with the reason when the connection is lost."""
    on_refused: Callable[[str], None]
    """Called with the server's words when it refuses one subject and keeps the connection."""

    @property
    def connected(self) -> bool:
        """Whether publishing can work now."""
        ...

    @property
    def reason(self) -> str:
        """Why it isn't connected, in words for an operator."""
        ...

    @property
    def max_payload(self) -> int:
        """The largest message the server takes, headers included, in bytes."""
        ...

    def publish_relaxed(self, subject: str, headers: str, payload: bytes) -> None:
        """Like `publish`, with a header block as text. Relaxed messages wait some milliseconds for each other, so that
        others overtake them; among themselves both kinds keep their order. A link that keeps events raises no error but
        PayloadTooLarge: they wait for a connection, and for the stream's confirmation."""
        ...

    def publish_all(self, messages: Sequence[tuple[str, str, bytes]]) -> None:
        """Like `publish`, for one or more messages at once: subject, header block as text, and payload."""
        ...

    def open(self) -> None:
        """Begin to connect, and keep at it until `close`. Doesn't wait."""
        ...

    def gather(self, subject: str, intake: Intake) -> int:
        """Like `subscribe`, of messages that an intake takes."""
        ...

    def stop_delivery(self, sid: int) -> None:
        """Tell the server to send no more; messages on their way still reach the receiver."""
        ...

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work` once the messages that arrived together are all received, before anything is written."""
        ...

    def when_taken(self, work: Callable[[], object]) -> None:
        """Call `work` once the server has taken everything sent so far that isn't relaxed. By then every message that
        the server had for this link before has been received. Never called when the connection is lost first."""
        ...

    def allow_haste(self, allowed: bool) -> None:
        """Whether `hasten` does anything from now on; until then it does nothing."""
        ...

    def hasten(self) -> None:
        """Let the relaxed messages that wait leave sooner, where that is allowed."""
        ...

    def await_event(self, headers: str, done: Callable[[], None]) -> None:
        """Write the relaxed messages that wait, and call `done` once the stream has the one with this header block, or
        it is lost; a link that keeps no events calls it at once."""
        ...

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109 - one round trip, bounded here
        """Wait until the server has taken everything sent so far. Raises BusDisconnected or TimeoutError."""
        ...

    async def close(self) -> None:
        """Disconnect for good."""
        ...
