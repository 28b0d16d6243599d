"""The header that tells a client how long its request waited for an engine."""

from math import ceil
from typing import Final

HEADER: Final = b"x-pointsman-queue-ms"


def queue_time(queued_ms: float) -> list[tuple[bytes, bytes]]:
    """The header, in whole milliseconds and at least 1; none for a request that didn't wait."""
    return [(HEADER, b"%d" % ceil(queued_ms))] if queued_ms else []
