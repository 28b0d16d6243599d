"""Names of the event stream and of the buckets that all services share."""

from typing import Final

from pointsman_contracts.subjects import REST, ROOT

EVENT_STREAM: Final = "PM_EVENTS"
PROBE_STREAM: Final = "PM_PROBE"
"""Made and deleted by `pointsman doctor`, to see whether the disk takes writes."""
EVENT_SUBJECTS: Final = f"{ROOT}.evt.{REST}"

CONFIG_BUCKET: Final = "pm-config"
CONFIG_KEY: Final = "config"
WORKERS_BUCKET: Final = "pm-workers"
POOLS_BUCKET: Final = "pm-pools"
HISTORY: Final = 64
"""Revisions that a bucket keeps of each key; the server's maximum."""
