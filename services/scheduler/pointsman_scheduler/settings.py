"""Settings of the scheduler."""

from pydantic import Field

from pointsman_core.units import ByteSize
from pointsman_runtime.configuring.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """Those of every service, and the scheduler's memory limit."""

    prefix_index: ByteSize = Field(default=256 * 2**20, ge=2**20)
    """Most memory that the prefix index of one pool takes, e.g. `1GiB`."""
