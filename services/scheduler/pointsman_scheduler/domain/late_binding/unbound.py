"""A request that isn't bound to an engine yet, and its binding."""

from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest


class Because(StrEnum):
    """Why a request was bound at this moment."""

    TURN = "its turn came"
    """The engine planned for it takes it up next."""
    PASS = "it fills a pass"  # noqa: S105 - of an engine
    """A pass that begins with other prompts gets longer by less than a pass of its own takes."""
    LIMIT = "its wait reached the limit"
    """It reached its limit: otherwise, shorter requests would have gone first."""
    FULL = "too many wait"
    """It was the oldest, and more requests waited than may. It goes to the engine that is best now: its plan counts
    none of those that were bound for the same reason."""
    ROOM = "an engine had room for its prompt"
    """The caches of all engines were taken until then. It goes to the best of the engines that have room."""
    CAPACITY = "an engine had capacity left"
    """It is background work, which waits until it delays no other request by more than its bound."""
    NO_CAPACITY = "no engine had capacity left"
    """It is background work that has waited as long as it may: it is refused."""
    LATE = "its first token would come too late"
    """No engine is predicted to have its first token in time for its service level: it is refused."""
    EXPIRED = "it has waited too long"
    """It would be late, and no engine has had time for it for as long as flow control lets a request wait: it is
    refused."""
    PROBE = "it tests a prediction"
    """It is predicted to be late, and would be refused; but no request has tested predictions lately."""
    CLOSING = "the scheduler shuts down"
    """It goes to the engine that is best now."""
    BLIND = "engines can't be predicted"
    """The pass model isn't trusted, or the engines of the pool changed."""


REFUSING: Final = frozenset({Because.LATE, Because.EXPIRED})
"""The request goes to no engine."""

_UNKNOWN: Final[Floats] = np.zeros(0)
_UNKNOWN.flags.writeable = False


class Unbound:
    """A request that waits. Times are milliseconds of the estimator's clock."""

    __slots__ = (
        "first_token_at", "latest", "left_out", "matched", "prompt", "reported", "request", "row", "rows", "since",
        "uncached", "uses",
    )  # fmt: skip

    def __init__(
        self,
        request: ScheduleRequest,
        since: float,
        rows: list[int] | None,
        row: int,
        uses: float,
        uncached: float,
        latest: float,
        reported: tuple[int, float] | None = None,
    ) -> None:
        self.request: Final = request
        self.since: Final = since
        self.prompt: Final = max(1, request.facts.prompt_tokens)
        self.matched = _UNKNOWN
        """Prompt tokens that each worker is estimated to hold, as of the last plan."""
        self.rows: Final = rows
        """Fleet rows that passed the filters; None for all."""
        self.row = row
        """Row of the worker planned for it."""
        self.uses: Final = uses
        """How often its longest known prefix was requested before."""
        self.reported: Final = reported
        """For a request of another scheduler: row of the worker that it reported, and the tokens held there. None for
        an own request."""
        self.uncached = uncached
        """Tokens to compute on the worker planned for it."""
        self.latest = latest
        """From then on it goes before all requests with a later limit. With a service level: when its first token is
        due."""
        self.left_out = False
        """Whether the last plan has its first token too late for its service level."""
        self.first_token_at = latest
        """Of one that is left out: when its first token would come after all those that are in time."""

    def match(self, matched: Floats) -> None:
        """Set the tokens that each worker is estimated to hold; the caller keeps the array."""
        self.matched = matched.copy()
        if self.reported is not None:
            row, held = self.reported
            self.matched[row] = max(self.matched[row], held)

    def shares(self, other: "Unbound") -> None:
        """Count the common beginning as held where `other` is planned to go."""
        mine, theirs, size = self.request.blocks, other.request.blocks, self.request.facts.block_tokens
        length = min(len(mine), len(theirs))
        held = float(self.matched[other.row])
        # Where the first block that isn't held differs, as it nearly always does, the common beginning is held.
        beyond = int(held // size) if size else length
        if beyond >= length or mine[beyond] != theirs[beyond]:
            return
        differ = np.flatnonzero(mine[:length] != theirs[:length])
        common = float((int(differ[0]) if len(differ) else length) * size)
        if common > held:
            self.matched[other.row] = common

    def least_uncached(self) -> float:
        """Tokens to compute on the worker that holds the most."""
        return self.tokens_to_compute(float(self.matched.max()))

    def tokens_to_compute(self, matched: float) -> float:
        """Tokens to compute where this many are held."""
        return max(1.0, self.prompt - matched)


class Bound(NamedTuple):
    """A request that goes to an engine now."""

    request: ScheduleRequest
    worker: str
    waited_ms: float
    because: Because
    predicted_ms: float = 0.0
    """Of one that is refused as late: from when it began to wait to its first token."""


class PeerRequest(NamedTuple):
    """A request that waits at another scheduler. Times are milliseconds of this scheduler's clock."""

    worker: str
    """As planned there."""
    uncached: float
    """Tokens that this worker would compute."""
    prompt: int
    priority: int
    latest: float
    """See `Unbound.latest`."""
    edge: str
    request_id: str
    since: float
    max_output: int | None
    block_tokens: int
    blocks: bytes
    """Like `RequestFacts.blocks`; empty when an earlier report had them."""

    @property
    def key(self) -> RequestKey:
        """Its identity among all requests."""
        return self.edge, self.request_id
