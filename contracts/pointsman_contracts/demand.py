"""Requests that wait for a pool in which no engine serves, and orders to wake one that sleeps."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from pointsman_contracts.events import Numbered
from pointsman_contracts.message import Address, Message, always

WANTED_AGAIN_MS: Final = 5_000
"""Between two events of one scheduler about one pool, while requests wait and nothing else changes."""
LONGEST_WAKE_MS: Final = 3600 * 1000
PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0


def wake_pause_s(failures: int) -> float:
    """Seconds until an engine is woken again after so many failures in a row, 1 at least: agents and schedulers pause
    alike."""
    return min(LONGEST_PAUSE_S, PAUSE_S * 2.0 ** min(failures - 1, 10))


class PoolWanted(Numbered, frozen=True, kw_only=True):
    """Requests wait at a scheduler for a pool in which no engine serves. Published by schedulers when the first request
    begins to wait, when `there` changes, every 5 s, and once when the last of them is gone. For any reader, e.g. a
    controller that starts engines.

    Each scheduler publishes what waits at itself. A reader keeps the last event of each `source`, adds up `waiting`,
    and forgets a source that it hasn't heard of for `lasts_ms`: its process is gone.
    """

    address: ClassVar[Address] = Address("evt", "pool", "wanted", route=("pool",))

    pool: str
    since_ms: int
    """When the first of these requests began to wait: unix milliseconds, by the scheduler's clock. With `source` it
    tells one time of waiting from the next one."""
    waiting: int
    """Requests that wait now; 0 in the last event."""
    oldest_ms: int = always(0)
    """How long the one that came first has waited so far."""
    there: str
    """`none`: the pool has no engine. `asleep`: it has some, and all that could serve sleep."""
    asleep: int = always(0)
    """Engines that sleep."""
    ordered: tuple[str, ...] = always(())
    """Engines that this scheduler ordered to wake, and that don't serve yet."""
    ended: str = always("")
    """In the last event, what ended it: `served` (an engine serves), or the way in which the last request ended:
    `timed_out`, `deadline`, `late`, `saturated` (it gave way to others), `cancelled` (its client left) or
    `shutting_down`. Empty before."""
    lasts_ms: int = always(3 * WANTED_AGAIN_MS)
    """Without another event of this source within this time, nothing waits at it any more."""


class WakeOrder(Message, frozen=True, kw_only=True):
    """Orders an agent to wake its engine, which sleeps. Published by schedulers at which requests wait, every second
    until the engine serves: it may come twice, and from several of them. An agent that is at it, or that pauses after a
    failure, ignores it."""

    address: ClassVar[Address] = Address("ctl", "worker", "wake-order", route=("pool", "worker"))

    boot_id: str
    """The engine's life; an agent ignores an order for another one."""
    within_ms: Annotated[int, Meta(ge=1, le=LONGEST_WAKE_MS)]
    """Time after which an engine that still sleeps counts as one that can't be woken."""
