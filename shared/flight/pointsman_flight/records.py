"""The records of a flight log: each is one call that entered a pool's scheduler, in the order of the calls.

A record is encoded as a msgpack array: its tag, then its fields in order. A later version only adds records, and
appends fields with defaults. A message in a record is a map by the names of its fields. `at` is the scheduler's
monotonic clock in seconds. Block hashes are renamed (`salt`), and stand before the records (`hashes`). Request ids,
sessions and fairness ids are hashed where the pool asks for it.
"""

import msgspec

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad
from pointsman_flight.hashes import BlockHashes


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all records."""


class PolicyDefined(Record, frozen=True, tag=1):
    """A scheduling policy, before its first use."""

    number: int
    """The number by which other records name it; counts from 1 in each segment chain."""
    name: str
    hash: str
    settings: str
    """The policy as JSON, as `config.SchedulingPolicy` reads it."""


class PoliciesUsed(Record, frozen=True, tag=2):
    """A configuration revision came into force: these policies may decide, the last one is the newest."""

    policies: tuple[int, ...]


class BlocksMeasured(Record, frozen=True, tag=3):
    """Tokens in one block of the prefix index."""

    block_tokens: int


class WorkerRegistered(Record, frozen=True, tag=4):
    """An engine registered, or renewed its registration."""

    at: float
    registration: bytes
    """JSON of `pointsman_contracts.worker.WorkerRegistration`."""


class WorkerRemoved(Record, frozen=True, tag=5):
    at: float
    worker: str


class LoadReported(Record, frozen=True, tag=25):
    """A load report."""

    at: float
    load: WorkerLoad
    counted: bool
    """Whether the scheduler knew this worker in this life."""


class Swept(Record, frozen=True, tag=7):
    """Expired state was forgotten."""

    at: float
    more: bool
    """Whether some of it was left for the next call."""
    slack_s: float = 0.0
    """How much longer than usual everything took on this machine."""


class LoggedRequest(Record, frozen=True):
    """A request, as far as decisions use it."""

    model: str
    lora: str | None
    attempt: int
    affinity: int
    """The first block's own hash, modulo the least common multiple of the pool's data-parallel sizes: ranks are chosen
    by it. 0 where no engine has ranks."""
    blocks: BlockHashes
    facts: RequestFacts
    """Without the blocks, and with only those headers that a plugin of the policy reads."""


class RecordedOutcome(Record, frozen=True):
    """The result of one decision. `seen` and `scored` are XXH3-64; format 1 had CRC-32 of float64 arrays instead of
    them, which are 0 now."""

    kind: str
    """`scheduled`, `refused`, `postponed`, or `failed` (a plugin raised)."""
    endpoints: tuple[str, ...] = ()
    """Workers in order of preference; of a postponed request, the worker that an immediate choice would take."""
    code: str = ""
    """Code of the refusal, or the exception's type."""
    held: bool = False
    """The request was on the books already, and stays where it is."""
    rank: int | None = None
    legs: tuple[tuple[str, str], ...] = ()
    """Further parts of the work, each with its worker."""
    cached_tokens: int = 0
    signals: int = 0
    """Digest of each worker's age, KV usage, running and waiting requests, as the decision saw them."""
    matched: int = 0
    """Digest of the prompt tokens that each worker is believed to hold."""
    scores: int = 0
    """Digest of all scores and totals of all runs."""
    reasons: tuple[str, ...] = ()
    """Why the decision isn't as good as it could be."""
    seen: int = 0
    """Digest of what `signals` and `matched` were of, as one float64 array."""
    scored: int = 0
    """Digest of what `scores` was of: a list as msgpack, an array as it is; each run's with the one before as seed."""


class Decided(Record, frozen=True, tag=24):
    """A request was decided."""

    at: float
    seed: int
    policy: int
    edge: str
    request_id: str
    request: LoggedRequest | None
    """None for a request that was postponed before: it is in that record."""
    bound: str | None
    """The worker that a request has waited for; empty for the best one; None for one that didn't wait."""
    queued_s: float
    """Seconds in flow control before this decision; 0 where it is unknown."""
    outcome: RecordedOutcome


class BindAsked(Record, frozen=True, tag=9):
    """In earlier logs: `LookedAtWaiting`, with the requests that go to an engine now, each as (edge, request id,
    worker, reason)."""

    at: float
    bound: tuple[tuple[str, str, str, str], ...]


class LookedAtWaiting(Record, frozen=True, tag=23):
    """Waiting requests were looked at. A decision of each that goes to an engine now follows."""

    at: float
    because: tuple[str, ...]
    """Why each of them goes, in the order in which they are decided."""


class RequestEventRecord(Record, frozen=True):
    """A record in the course of a request."""

    at: float
    edge: str
    request_id: str


class AnswerStarted(RequestEventRecord, frozen=True, tag=10):
    """The first byte of an answer came."""

    worker: str
    ttft_ms: float
    handed_ms: float | None = None
    """Since another engine had computed the prompt."""
    decision: int = 1
    """The request's decision that chose the worker."""


class AttemptLost(Record, frozen=True, tag=26):
    """An engine didn't answer."""

    at: float
    event: AttemptFailed

    @property
    def edge(self) -> str:
        return self.event.source

    @property
    def request_id(self) -> str:
        return self.event.request_id


class RequestCompleted(RequestEventRecord, frozen=True, tag=12):
    """A request is over."""

    ok: bool
    output_tokens: int | None
    duration_ms: float | None
    worker: str | None
    told_ms: int
    ending: str = ""
    """`cut_off` when the engine broke the answer off, `client_error` for an answer that shows nothing about it;
    `empty`, `repeating` and `refusing` for one that may be its fault or the request's."""
    disproved: tuple[tuple[str, str, str], ...] = ()
    """Attempts that refused the request as the client's fault before another engine answered it: engine, outcome, and
    the name of the model or adapter."""


class AnswerAdded(RequestEventRecord, frozen=True, tag=28):
    """The blocks of an answer became known, just before the request was over."""

    worker: str
    blocks: BlockHashes


class PeerChanged(Record, frozen=True, tag=27):
    """Another scheduler changed its reservations."""

    at: float
    scheduler: str
    change: ReservationChange
    """Without its blocks."""
    blocks: BlockHashes
    counted: bool
    """Whether the change was applied; otherwise it was late or about an unknown worker."""


class PeerWaiting(Record, frozen=True, tag=14):
    """The requests that wait at another scheduler, each as (worker, tokens to compute, prompt, priority, limit, edge,
    request id, when it began to wait, most tokens of the answer, tokens of a block, blocks). None: that scheduler
    lives, and reported nothing about its waiting requests."""

    at_ms: float
    scheduler: str
    requests: tuple[tuple[str, float, int, int, float, str, str, float, int | None, int, BlockHashes], ...] | None


class WaitEnded(Record, frozen=True, tag=15):
    """A waiting request was dropped (`at_ms` is None), or goes at once to the engine that is best."""

    edge: str
    request_id: str
    at_ms: float | None


class KvTold(Record, frozen=True, tag=16):
    """The blocks in an engine's KV cache, or a change of them."""

    at: float
    worker: str
    boot_id: str
    everything: BlockHashes | None
    """Blocks that replace all earlier reports; None to keep them."""
    changes: tuple[tuple[str, BlockHashes], ...]
    """`stored`, `removed` or `cleared`, with blocks."""
    complete: bool
    """Whether nothing of its cache's history is missing now."""


class IndexDumped(Record, frozen=True, tag=17):
    """A peer asked for the prefix blocks of a worker. The index counts it as a use of the clock."""

    at: float
    life: int


class IndexLoaded(Record, frozen=True, tag=18):
    """Prefix blocks of a worker were taken over from a peer."""

    at: float
    life: int
    blocks: BlockHashes
    ages: bytes
    """float64."""
    stored: bytes
    """One byte each: 1 when the engine reported it."""


class StateChecked(Record, frozen=True, tag=19):
    """Figures of the state at this point, which a replay must have too."""

    figures: tuple[float, ...]
    """In the order of `CHECKED`."""


CHECKED = (
    "holdings",
    "blocks",
    "open blocks",
    "requests on the books",
    "requests that wait",
    "fleet's epoch",
    "way of counting",
)
"""Names of `StateChecked.figures`."""


class SnapshotPart(Record, frozen=True, tag=20):
    """A part of the state at the beginning of a segment; the parts of one snapshot follow each other."""

    content: bytes
    last: bool


class SegmentEnded(Record, frozen=True, tag=21):
    """The last record of a complete segment."""

    reason: str
    """`rotated`, `closed`, or `gap`."""
    dropped: int = 0
    """With `gap`: how many inputs after this one are missing."""
