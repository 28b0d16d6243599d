"""Settings of the recorder."""

from pathlib import Path

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class RecorderSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment."""

    recorder_name: str = Field(default="recorder", pattern=r"^[A-Za-z0-9_-]+$")
    """What this recorder's place in the stream of events is remembered by. A further recorder, which keeps everything
    once more, has a name and a folder of its own."""
    state_dir: Path = Path("recorder-state")
    """Folder of its store; made when it isn't there."""
    keep_days: float = Field(default=30.0, gt=0)
    """How long events are kept."""
    keep_bytes: int = Field(default=10 * 2**30, ge=2**20)
    """How large the store may grow; the oldest events go first."""
    keep_sums_days: float = Field(default=800.0, gt=0)
    """How long sums of usage are kept."""

    usage_max_age_s: float = Field(default=400 * 86400.0, gt=1)
    """How long the usage ledger keeps a record; used when this process makes the stream `PM_USAGE`."""
    usage_max_bytes: int = Field(default=2**30, gt=0)
    """How much it keeps; the oldest go first."""
