"""The state of a pool's engines as one scheduler sees it, for people who look at it."""

from typing import ClassVar

from msgspec import field

from pointsman_contracts.message import Address, Message, always


class FleetQuery(Message, frozen=True, kw_only=True):
    """Asks a scheduler what it knows about the engines of a pool beyond their reports. Sent by the console while a page
    shows it, every few seconds; answered with `FleetView`."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "fleet", route=("instance",))

    pool: str


class FleetView(Message, frozen=True, kw_only=True):
    """The answer to `FleetQuery`. Columns: entry `i` of each belongs to `workers[i]`."""

    address: ClassVar[Address] = Address("ctl", "scheduler", "fleet-answer", route=("inbox",))

    scheduler: str
    """Instance that answers."""
    pool: str
    workers: tuple[str, ...] = always(())
    open: tuple[int, ...] = always(())
    """Requests on the scheduler's books."""
    prefix_blocks: tuple[int, ...] = always(())
    """Prefix blocks that the worker's KV cache is believed to hold."""
    speeds: tuple[float, ...] = always(())
    """Learnt duration of the worker's passes divided by the pool's: 2.0 is half as fast. Empty without a policy that
    learns it."""
    ignored: dict[str, str] = field(default_factory=dict[str, str])
    """Worker → why decisions leave it out, e.g. `silent for 2.1 s`, `ejected: 3 of its last 3 requests failed, ...`."""
    block_tokens: int = always(0)
    """Tokens in a prefix block."""
    queued: int = always(0)
    """Requests that wait in flow control."""
    unbound: int = always(0)
    """Requests that wait for the engine that suits them best."""
    prefill_tokens_s: float | None = None
    """Learnt speed of the pool: prompt tokens that one engine computes in a second; None before it is trusted."""
    step_ms: float | None = None
    """Learnt duration of a decode step with one sequence; None before it is trusted."""
