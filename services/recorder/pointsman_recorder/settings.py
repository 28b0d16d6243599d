"""Settings of the recorder."""

from pathlib import Path

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class RecorderSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment."""

    recorder_name: str = Field(default="recorder", pattern=r"^[A-Za-z0-9_-]+$")
    """The durable name under which this recorder's place in the stream of events is stored. A further recorder, which
    stores everything once more, needs a name and a folder of its own."""
    state_dir: Path = Path("recorder-state")
    """Folder of its store; made when it isn't there."""
    keep_days: float = Field(default=30.0, gt=0)
    """Days that events are kept."""
    keep_bytes: int = Field(default=10 * 2**30, ge=2**20)
    """Bytes that the store may grow to; the oldest events go first."""
    keep_sums_days: float = Field(default=800.0, gt=0)
    """Days that sums of usage are kept."""

    judge: bool = False
    """Whether it judges decisions once their requests have ended, and publishes their regret (docs/regret.md): about
    70 µs of CPU a request."""

    usage_max_age_s: float = Field(default=400 * 86400.0, gt=1)
    """Seconds that the usage ledger keeps a record; used when this process makes the stream `PM_USAGE`."""
    usage_max_bytes: int = Field(default=2**30, gt=0)
    """Bytes that it keeps; the oldest records go first."""
