"""Settings of the scheduler."""

from pathlib import Path

from pydantic import Field, SecretStr

from pointsman_core.units import ByteSize
from pointsman_runtime.configuring.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """Those of every service, and the scheduler's memory limit."""

    prefix_index: ByteSize = Field(default=256 * 2**20, ge=2**20)
    """Most memory that the prefix index of one pool takes, e.g. `1GiB`."""
    flight_dir: Path = Path("flight")
    """Folder of the flight logs, for pools with `flight`; made when it isn't there."""
    flight_salt: SecretStr | None = None
    """Key by which flight logs rename block hashes, the same for all schedulers of a deployment. Without it, a random
    key is made in `flight_dir`."""
