"""How long to wait before the next try to connect.

Full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/. A server that is back is
found within a second, by every client at another moment.
"""

import random
from collections.abc import Callable
from typing import Final

BASE_S: Final = 0.05
CAP_S: Final = 1.0
PING_INTERVAL_S: Final = 0.5
"""How often a connection asks the server whether it lives."""
OUTSTANDING_PINGS: Final = 3
"""Unanswered pings that a connection allows: a server that stopped is noticed within two seconds, on a machine where
everything is late that much later. A stage that then connects to another server is heard again before
`edge.silent_wait` has passed."""


def full_jitter(attempt: int, uniform: Callable[[float, float], float] = random.uniform) -> float:
    """Seconds to wait before try number `attempt` (0 is the first): anything up to a doubling bound."""
    return uniform(0.0, min(CAP_S, BASE_S * 2.0 ** min(attempt, 10)))
