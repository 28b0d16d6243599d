"""How long a journey's message may take from one process to the next. Pure."""

from typing import Final

_MOST_DOUBLINGS: Final = 5


def budget_of(attempt: int, hop_budget_s: float) -> float:
    """Seconds that the message of this attempt may take to be read and answered: those of the first two tries
    `hop_budget_s`, those of each further try twice as long as of the one before. Where all processes are slow, the
    same budget at every try would throw away each message just before it is read."""
    return hop_budget_s * (1 << min(max(attempt - 2, 0), _MOST_DOUBLINGS))
