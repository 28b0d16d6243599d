"""The numbers that the recorder's tables hold. An event with another one isn't readable, so that it stops no batch."""

from typing import Final

MOST: Final = 2**63 - 1
"""The largest number of a table, and with a minus the smallest."""
MOST_DOLLARS: Final = 9e9
"""Their nano-dollars are no more than `MOST`."""
_LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999."""


def calendar_ms(at_ms: int) -> int:
    """The nearest time from 1970 to 9999, unix milliseconds."""
    return min(max(at_ms, 0), _LAST_MS)
