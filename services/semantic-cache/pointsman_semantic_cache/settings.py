"""Settings of the semantic-cache."""

from pathlib import Path

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class SemanticCacheSettings(ServiceSettings):
    """Settings of a semantic-cache process, beside those of every service."""

    snapshot_dir: Path | None = None
    """Folder that keeps the answers of caches with `store: memory` over a restart; they are lost without one. Each
    replica needs its own."""
    snapshot_every_s: float = Field(default=60.0, gt=0)
    """How much is lost at most when the process is killed."""
