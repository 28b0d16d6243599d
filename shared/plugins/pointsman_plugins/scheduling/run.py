"""One run of a scheduling profile, and the selection that a profile handler makes of the runs."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from pointsman_contracts.reply import PrefillLeg
from pointsman_contracts.scheduling import LegsForecast
from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.arrays import Floats, Ints
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.worker import Worker


class Exhausted(NamedTuple):
    """The error for a request that has no candidate left (reasons as in llm-d-router 0.10)."""

    status: int
    type: str
    code: str
    dropped_reason: str | None = None
    retry_after_s: float | None = None

    def refusal(self, message: str) -> Refusal:
        """With the words for the client."""
        return Refusal(
            self.status,
            message,
            type=self.type,
            code=self.code,
            retry_after_s=self.retry_after_s,
            dropped_reason=self.dropped_reason,
        )


NO_ENDPOINTS: Final = Exhausted(503, "server_error", "no_endpoints", "rejected-no-endpoints", 1.0)
SATURATED: Final = Exhausted(429, "rate_limit_error", "saturated", "rejected-saturated", 1.0)
TOO_LONG: Final = Exhausted(400, "invalid_request_error", "context_length_exceeded")
UNKNOWN_WORKER: Final = Exhausted(400, "invalid_request_error", "unknown_worker")
BROKEN: Final = Exhausted(500, "server_error", "scheduling_failed")


class Removed(NamedTuple):
    """The candidates that a filter removed, for the explanation."""

    filter: str
    rows: Ints
    why: str | Callable[[Worker], str]


Table = Floats | list[list[float]]
"""[scorers + 1, candidates], unweighted, in [0,1]; the last row holds the weighted sums."""


class Run(Struct, eq=False, gc=False):
    """One run of a scheduling profile, with everything that explains it."""

    profile: str
    candidates: Candidates
    """The candidates that passed the filters."""
    weights: Mapping[str, float]
    """Scorer instance → weight, in the order of the rows of `scores`."""
    scores: Table | None = None
    """None when the filters left no candidate to score."""
    removed: list[Removed] = []
    degraded: list[str] = []
    chosen: list[int] = []
    """Fleet rows in order of preference; empty when the run failed."""
    error: str | None = None
    exhausted: Exhausted | None = None


class Selection(Struct, eq=False, gc=False):
    """A profile handler's result from the runs."""

    primary: Run
    """Its choice answers the request; its other candidates are the fallbacks."""
    legs: dict[str, Run] = {}
    """Further runs whose first choice does a part of the work, by the name of that part, e.g. `prefill`."""
    prompt_leg: str = ""
    """The leg that computes the prompt: empty when the endpoint that answers does."""
    rank: int | None = None
    """Data-parallel rank inside the engine; None leaves it to the engine."""
    degraded: list[str] = []
    """Why the handler settled for less."""
    prefill: PrefillLeg | None = None
    """The leg that computes the prompt, where the edge sends it itself; None leaves it to a sidecar."""
    forecast: LegsForecast | None = None
    """The prediction that decided where the prompt is computed."""
