"""How much memory an index takes."""

from typing import Final, NamedTuple

BLOCK_BYTES: Final = 150
"""Bytes of one known block: its hash, and its entry in a table of masks with the slack of steady inserts and removals
(measured: 280 bytes a block with one holder; 110 while the index only grows)."""
HOLDING_BYTES: Final = 130
"""Bytes of one block of one worker: its entries in that worker's table and log, likewise."""
REPORTED_BYTES: Final = 60
"""Bytes of one block that an engine reported: 8 for its hash, 4 each for holders and time, in a table that is filled to
between a fifth and a third."""
REPORT_BYTES: Final = 20
"""Bytes of one reported block of one worker, in that worker's reports."""
GROWTH: Final = BLOCK_BYTES + HOLDING_BYTES
"""The most that the size grows by with a block of a worker."""


class Memory(NamedTuple):
    """Figures of an index."""

    blocks: int
    """One that is both reported and predicted counts twice."""
    holdings: int
    """Pairs of a worker and a block; likewise."""
    open_requests: int
    bytes: int
    """Estimate of what blocks, holdings and open requests take."""
    limit: int
    evicted_capacity: int
    """Holdings dropped because the worker's own cache can't have kept them."""
    evicted_memory: int
    """Holdings dropped because the index was full."""
    expired: int
    abandoned: int
    """Requests that were neither confirmed nor retracted in time."""
