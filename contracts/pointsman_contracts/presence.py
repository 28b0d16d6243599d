"""Who lives: the heartbeat of every service, and what an edge knows about its open requests."""

from typing import ClassVar

from pointsman_contracts.message import Address, Message, always


class ServicePresence(Message, frozen=True, kw_only=True):
    """A heartbeat from the loop that does the work, five times a second. Read by every forwarder.

    An instance not heard of for 600 ms is silent: forwarders go around it.
    """

    address: ClassVar[Address] = Address("sig", "service", "presence", route=("service", "instance"))

    service: str
    instance: str
    sequence: int
    at_ms: int
    version: str
    """Version of the software."""
    ready: bool = always(True)
    """False while starting and draining: forwarders don't address it."""
    revision: int = always(0)
    """Configuration revision that it runs."""
    routes: tuple[str, ...] = always(())
    """Route tokens (pools) that it serves; empty when it serves all."""
    contracts: tuple[int, int] = always((1, 1))
    """Oldest and newest generation of the contracts that it speaks. A process that shares none with another one doesn't
    become ready beside it, and gets no messages."""
    descriptors: int | None = None
    """How many files and connections its process may have open at a time; None: it doesn't say."""


class OpenRequestsQuery(Message, frozen=True, kw_only=True):
    """Asks an edge which of these requests are still open. Sent by schedulers before they release an old
    reservation that wasn't settled; answered with `OpenRequests`."""

    address: ClassVar[Address] = Address("ctl", "edge", "open-requests", route=("edge",))

    request_ids: tuple[str, ...]


class OpenRequests(Message, frozen=True, kw_only=True):
    """The answer to `OpenRequestsQuery`: the subset that is open."""

    address: ClassVar[Address] = Address("ctl", "edge", "open-requests-answer", route=("inbox",))

    request_ids: tuple[str, ...]
