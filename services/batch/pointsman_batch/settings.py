"""Settings of the batch service, beside those of every service."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_edge.taking_in.request_headers import IDENTITY_HEADERS
from pointsman_edge.taking_in.trust import Network
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.configuring.urls import is_loopback


class BatchSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment; lists are written as JSON."""

    host: str = "127.0.0.1"
    """Where files and batches are served, to frontends and to clients."""
    port: int = Field(default=8095, ge=0, le=65535)
    """0 takes a free port, which the log names."""
    port_shared: bool = False
    """Let other replicas of this user listen on the same port: the kernel deals new connections among them."""
    open_to_all: bool = False
    """Allow `host` to be reachable from other hosts."""
    gateway_url: str = "http://127.0.0.1:8080"
    """Where the requests of lines go: a frontend, or the Envoy in front of the gateway."""

    trusted_proxies: tuple[Network, ...] = ()
    """As of the frontend: networks of peers whose headers may name the client."""
    identity_headers: tuple[str, ...] = IDENTITY_HEADERS
    """As of the frontend."""

    files_dir: Path | None = None
    """Folder for the content of files, which all replicas must share; default: a bucket on the bus."""
    files_s3_bucket: str | None = None
    """Bucket of an S3-compatible store for the content of files, instead. Credentials and region are AWS's variables,
    files or roles."""
    files_s3_prefix: str = "pointsman/"
    """Begins the keys of the objects there."""
    files_s3_endpoint: str | None = None
    """URL of the store, where it isn't AWS's own; the bucket's name is in the path then."""
    files_max_bytes: int | None = Field(default=None, ge=2**20)
    """Bytes of all files that the bucket takes, which the server reserves; only where this process makes it. Default:
    as many as the server has room for."""
    file_max_bytes: int = Field(default=2**30, ge=1024)
    """Largest file that is taken."""
    line_max_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Longest line of a file."""
    most_lines: int = Field(default=50_000, ge=1)
    """Most lines of a batch."""

    batches_at_once: int = Field(default=8, ge=1)
    """Batches that this replica runs at once; their lines share its requests evenly."""
    lines_at_once: int = Field(default=64, ge=1)
    """Most requests that this replica has open at once."""
    room_below: float = Field(default=1.0, gt=0)
    """Lines begin while the saturation of their model's pool is below this; then they wait at the scheduler."""
    line_priority: int = Field(default=BATCH_PRIORITY, ge=-1000, le=1000)
    """Priority of lines in the scheduler's queues; requests of clients have 0, background work has -100 or less."""
    urgent_priority: int = Field(default=0, ge=-1000, le=1000)
    """Priority of lines that risk to expire."""
    line_timeout_s: float = Field(default=900.0, gt=0)
    """How long the answer to a line may take."""
    longest_window_s: float = Field(default=7 * 86400.0, gt=0)
    """Longest completion window that is taken."""
    keep_days: float = Field(default=30.0, gt=0)
    """Days after which an ended batch and files without an expiry of their own are deleted."""

    @model_validator(mode="after")
    def _name_one_place(self) -> Self:
        if self.files_dir is not None and self.files_s3_bucket is not None:
            raise ValueError("files_dir and files_s3_bucket: set one of them; files are kept in one place")
        return self

    @model_validator(mode="after")
    def _refuse_strangers(self) -> Self:
        if not self.open_to_all and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} is reachable from other hosts; listen on 127.0.0.1, or set "
                "POINTSMAN_OPEN_TO_ALL=true if every host that can reach it may use it"
            )
        return self
