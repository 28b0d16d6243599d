"""The state of a pool's engines as one scheduler sees it, for people who look at it."""

from typing import ClassVar

from pydantic import Field

from pointsman_contracts.message import Address, Message


class FleetQuery(Message):
    """Asks a scheduler what it knows about the engines of a pool beyond their reports. Sent by the console while a page
    shows it, every few seconds; answered with `FleetView`."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "fleet", route=("instance",))

    pool: str


class FleetView(Message):
    """The answer to `FleetQuery`. Columns: entry `i` of each belongs to `workers[i]`."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "fleet-answer", route=("inbox",))

    scheduler: str
    """Instance that answers."""
    pool: str
    workers: tuple[str, ...] = ()
    open: tuple[int, ...] = ()
    """Requests on the scheduler's books."""
    prefix_blocks: tuple[int, ...] = ()
    """Prefix blocks that the worker's KV cache is believed to hold."""
    speeds: tuple[float, ...] = ()
    """Learnt duration of the worker's passes divided by the pool's: 2.0 is half as fast. Empty without a policy that
    learns it."""
    ignored: dict[str, str] = Field(default_factory=dict[str, str])
    """Worker → why decisions leave it out, e.g. `silent for 2.1 s`, `ejected: 3 of its last 3 requests failed, ...`."""
    block_tokens: int = 0
    """Tokens in a prefix block."""
    queued: int = 0
    """Requests that wait in flow control."""
    unbound: int = 0
    """Requests that wait for the engine that suits them best."""
    prefill_tokens_s: float | None = None
    """Learnt speed of the pool: prompt tokens that one engine computes in a second; None before it is trusted."""
    step_ms: float | None = None
    """Learnt duration of a decode step with one sequence; None before it is trusted."""
