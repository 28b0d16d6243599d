"""Names of the event stream and of the buckets that all services share."""

from typing import Final

from pointsman_contracts.api_key import KEYS_BUCKET
from pointsman_contracts.batch import BATCHES_BUCKET, CHUNKS_BUCKET, FILES_BUCKET, LENT_BUCKET, RESULTS_BUCKET
from pointsman_contracts.kept_response import RESPONSES_BUCKET
from pointsman_contracts.limits import LIMITS_BUCKET

EVENT_STREAM: Final = "PM_EVENTS"
PROBE_STREAM: Final = "PM_PROBE"
"""Made and deleted by `pointsman doctor`, to see whether the disk takes writes."""

CONFIG_BUCKET: Final = "pm-config"
CONFIG_KEY: Final = "config"
WORKERS_BUCKET: Final = "pm-workers"
POOLS_BUCKET: Final = "pm-pools"
DESCRIPTIONS: Final = {
    CONFIG_BUCKET: "Revisions of pointsman.yaml that `pointsman config apply` stored",
    WORKERS_BUCKET: "Registered workers by pool and name; entries expire",
    POOLS_BUCKET: "Objectives and rewrites that a cluster has for each pool",
    KEYS_BUCKET: "API keys by the hash of the key",
    LIMITS_BUCKET: "Snapshots of the counts of limits and budgets, by shard",
    FILES_BUCKET: "Files of batches",
    CHUNKS_BUCKET: "Content of files of batches, in parts",
    BATCHES_BUCKET: "Batches and their progress",
    RESULTS_BUCKET: "Results of the lines of batches that run",
    LENT_BUCKET: "Identities of the requests of batches, by the hash of their tokens",
    RESPONSES_BUCKET: "The engine that made each response of /v1/responses, by the hash of its id; entries expire",
}
"""Bucket → its description in `nats kv info`."""
HISTORY: Final = 64
"""Revisions that a bucket keeps of each key; the server's maximum."""
