"""The first frame of a segment: what it is a log of, and how it continues the one before."""

import msgspec


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame of a segment, as a msgpack map."""

    format: int
    product: str
    """Version of the software that wrote it."""
    pool: str
    scheduler: str
    """Instance of the scheduler: another one in each life of its process."""
    index: int
    """Counts the segments of this pool and scheduler from 1."""
    empty: bool
    """Whether the scheduler knew nothing yet: a replay needs no snapshot."""
    follows: bool
    """Whether the inputs continue those of the segment before without a gap."""
    first_input: int
    """Number of the first input in this segment; the first of a life has 1."""
    unix_ns: int
    monotonic: float
    """Both clocks when the segment began."""
    salt: str
    """Names the key that block hashes were renamed by."""
    hashed_ids: bool
    index_bytes: int
    """Most memory of the pool's prefix index."""
    previous: int = 0
    """Chain of the last frame of the segment before, where `follows`."""
    gap: str = ""
    """Why inputs before this segment are missing; empty when none is."""
    missed: int = 0
    """How many are missing, as far as it is known."""
    platform: dict[str, str] = {}
    """The platform, on which the last digit of a floating-point number depends."""
