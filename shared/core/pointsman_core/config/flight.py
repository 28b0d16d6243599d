"""`pools.NAME.flight`: the flight log of a pool."""

from pydantic import Field

from pointsman_core.config.section import Section
from pointsman_core.units import ByteSize, PositiveDuration


class FlightSettings(Section):
    """The flight log: each scheduler of the pool keeps one, in its setting `flight_dir`."""

    keep: ByteSize = Field(default=2 * 2**30, ge=2**20)
    """Most bytes on the disk of one scheduler; the oldest segments are deleted first."""
    segment: PositiveDuration = 300.0
    """How long a segment is. A replay can start at the beginning of each."""
    hash_ids: bool = False
    """Record requests' ids, sessions and fairness ids as keyed hashes. Block hashes are always hashed with that key."""
    headers: tuple[str, ...] = ()
    """Further request headers to record, for plugins that read headers without naming them in `reads_headers`."""
