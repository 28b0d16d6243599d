"""Batches: requests that the service `batch` runs one by one while engines have room, their files and their results."""

from typing import ClassVar, Final, Self

import msgspec

from pointsman_contracts.message import Address, JsonValue, Message, Part, always

FILES_BUCKET: Final = "pm-files"
CHUNKS_BUCKET: Final = "pm-file-chunks"
BATCHES_BUCKET: Final = "pm-batches"
RESULTS_BUCKET: Final = "pm-batch-results"
LENT_BUCKET: Final = "pm-lent-identities"

LENT_PREFIX: Final = "pm-lent-"
"""Begins the bearer tokens of `LentIdentity`; no API key of the gateway begins so."""
LENT_AUTHORIZATION: Final = f"Bearer {LENT_PREFIX}"
"""Begins the header `Authorization` of a request that comes from a batch, by its own account."""
KEY_REVOKED: Final = "batch_key_revoked"
"""Code of the refusal of a line whose batch was made with an API key that isn't valid any more."""
WORK_PREFIX: Final = "work_"
"""Begins the ids by which the items of a queue are counted, one for each queue and day."""
_ID_PREFIXES: Final = ("batch_", "msgbatch_", WORK_PREFIX)
_TIME_DIGITS: Final = 12

ENDED: Final = frozenset({"failed", "completed", "expired", "cancelled"})
"""Values of `BatchRecord.status` of a batch that doesn't change any more."""


def make_batch_id(prefix: str, created_ms: int, rest: str) -> str:
    """The id of a batch; `rest` is random. It holds the time, by which the ledger counts the usage of its lines."""
    return f"{prefix}{created_ms:0{_TIME_DIGITS}x}{rest}"


def created_ms_of(batch: str) -> int | None:
    """When the batch with this id was made, in unix milliseconds; None for text that isn't such an id."""
    for prefix in _ID_PREFIXES:
        if batch.startswith(prefix):
            digits = batch[len(prefix) : len(prefix) + _TIME_DIGITS]
            try:
                return int(digits, 16) if len(digits) == _TIME_DIGITS else None
            except ValueError:
                return None
    return None


def charged_attempt(request_id: str, batch: str) -> str | None:
    """Names an attempt of a batch's line among all requests: it is the same in each request that repeats the attempt,
    so that it is charged once. None for text that isn't the id of a batch."""
    if created_ms_of(batch) is None:
        return None
    # An edge that has the id in use still adds a suffix.
    return f"{request_id.partition('.')[0]}@{batch}"


class StoredFile(Message, frozen=True, kw_only=True):
    """A file that clients see. Value of key `<file>` in bucket `pm-files`, published by and read by the service
    `batch`."""

    address: ClassVar[Address] = Address("kv", "file", "record", route=("file",), bucket=FILES_BUCKET)

    id: str
    owner: str
    """Only senders with the same owner see it."""
    filename: str
    purpose: str
    """`batch` or `batch_output`."""
    bytes: int
    chunks: int
    created_ms: int
    expires_ms: int | None = None
    """Unix milliseconds at which it is deleted; None: never."""
    complete: bool = always(True)
    """Whether its content is written. Clients don't see an incomplete file. It expires if its writer dies."""


class FileChunk(Message, frozen=True, kw_only=True):
    """A part of a file. Value of key `<file>.<chunk>` in bucket `pm-file-chunks`, published by and read by the service
    `batch`. The value is the bytes themselves."""

    address: ClassVar[Address] = Address("kv", "file", "chunk", route=("file", "chunk"), bucket=CHUNKS_BUCKET)


class LineProblem(Part, frozen=True, kw_only=True):
    """A reason why a batch was refused."""

    code: str
    message: str
    line: int | None = None
    """Counted from 1."""
    param: str | None = None
    """The field of the line."""


class BatchRecord(Message, frozen=True, kw_only=True):
    """A batch and its progress. Value of key `<batch>` in bucket `pm-batches`, published by and read by replicas of
    `batch`.

    Each write names the revision that it replaces.
    """

    address: ClassVar[Address] = Address("kv", "batch", "record", route=("batch",), bucket=BATCHES_BUCKET)

    id: str
    api: str
    """`openai` or `anthropic`: the API that made it."""
    owner: str
    """The owner of its files."""
    identity: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The attribute `identity` of the request that made it; empty without authentication."""
    endpoint: str
    """Path of the lines' requests, e.g. `/v1/chat/completions`."""
    input_file: str
    window: str = always("24h")
    metadata: dict[str, str] | None = None
    created_ms: int
    expires_ms: int
    """When lines that haven't run expire."""
    status: str = always("validating")
    """`validating`, `in_progress`, `finalizing`, `cancelling`, or one of `ENDED`."""
    runner: str = always("")
    """Instance of the replica that runs it; empty: none."""
    beat: int = always(0)
    """Raised by the runner about once a second: a batch whose beat stands still has lost its runner."""
    total: int = always(0)
    """Lines."""
    completed: int = always(0)
    failed: int = always(0)
    expired: int = always(0)
    cancelled: int = always(0)
    problems: tuple[LineProblem, ...] = always(())
    """Why `status` is `failed`."""
    output_file: str | None = None
    error_file: str | None = None
    output_expires_s: int | None = None
    """Seconds after which output files expire."""
    in_progress_ms: int | None = None
    finalizing_ms: int | None = None
    cancelling_ms: int | None = None
    ended_ms: int | None = None
    deleted: bool = always(False)


class LineResult(Message, frozen=True, kw_only=True):
    """The outcome of a line. Value of key `<batch>.<line>` in bucket `pm-batch-results`, written once: a replica that
    comes second is refused by the server. Published by and read by the service `batch`.

    On the wire: this document on one line, a newline, then the body of the answer as it came.
    """

    address: ClassVar[Address] = Address("kv", "batch", "line-result", route=("batch", "line"), bucket=RESULTS_BUCKET)

    custom_id: str
    request_id: str = always("")
    """The id of the request that was answered; empty when none was."""
    status: int | None = None
    """HTTP status of the answer; None when the line has none."""
    error: str = always("")
    """Code of the reason why it has none, e.g. `batch_expired`."""
    message: str = always("")
    """The reason in words."""
    attempts: int = always(0)
    chunks: int = always(0)
    """In how many chunks a long body is stored in bucket `pm-file-chunks`; 0: it follows here."""
    apart: str = always("")
    """The file of these chunks."""

    def encode_with(self, body: bytes) -> bytes:
        """The value with this body."""
        return b"%b\n%b" % (self.encode(), body)

    @classmethod
    def decode_with(cls, value: bytes) -> tuple[Self, bytes]:
        """Result and body. Raises MalformedMessage."""
        document, _, body = value.partition(b"\n")
        return cls.decode(document), body


class LentIdentity(Message, frozen=True, kw_only=True):
    """The identity of requests that a service sends to the gateway's own door: lines of a batch, items of a queue, a
    mirror's copies. Value of key `<SHA-256 of a bearer token>` in bucket `pm-lent-identities`, published by the
    process that alone has the token; read by preprocessors."""

    address: ClassVar[Address] = Address("kv", "identity", "lent", route=("sha256",), bucket=LENT_BUCKET)

    batch: str
    """Empty for requests of no batch."""
    identity: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The attribute `identity` that the requests get."""
    priority: int = always(0)
    expires_ms: int
