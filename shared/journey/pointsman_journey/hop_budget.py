"""How long a journey's message may take from one process to the next. Pure."""

from typing import Final

HOP_BUDGET_S: Final = 0.6
"""How long an edge waits before it sends a request again, by default."""
_MOST_DOUBLINGS: Final = 5
_BYTES_PER_S: Final = 2 * 2**20
"""A large body takes time to send and to read. Sending it again without need takes that time from other requests."""


def budget_of(attempt: int, hop_budget_s: float, slack_s: float, size: int = 0) -> float:
    """Seconds that the message of this attempt, with a body of `size` bytes, may take to be read and answered.

    The first two tries have `hop_budget_s`, each further one has twice as long as the one before: where all processes
    are slow, the same budget at every try would throw away each message just before it is read. `slack_s`: how late
    everything is at the moment.
    """
    return hop_budget_s * (1 << min(max(attempt - 2, 0), _MOST_DOUBLINGS)) + slack_s + size / _BYTES_PER_S
