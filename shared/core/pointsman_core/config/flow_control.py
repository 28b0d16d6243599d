"""The flow control of a pool: how requests wait while it is saturated."""

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from pointsman_core.config.section import PluginUse, Section
from pointsman_core.units import ByteSize, Duration, PositiveDuration


class Band(Section):
    """Requests of one priority that wait together. None means no limit."""

    max_requests: int | None = Field(default=5000, ge=0)
    """Most requests that wait. With 0, a request that can't be sent at once is rejected."""
    max_bytes: ByteSize | None = 10**9
    """Total size of the bodies of waiting requests."""
    ceiling: float = Field(default=1.0, gt=0)
    """The pool's saturation from which on requests of this band wait. Less than 1 keeps room for higher bands."""
    fairness: PluginUse = PluginUse(use="round-robin")
    """The order among the flows of the band."""
    ordering: PluginUse = PluginUse(use="fcfs")
    """Which request of a flow goes first."""


class Background(Section):
    """How much work of requests with the priority of batches an engine runs beside other requests."""

    harm: float = Field(default=0.03, ge=0, le=1)
    """By which share background requests may make the steps of an engine's other requests longer, as predicted."""
    prompt_time: float = Field(default=0.1, ge=0, le=1)
    """Share of an engine's time that prompts of background requests may take while it has other requests."""
    alone: int = Field(default=4, ge=0)
    """Most background requests of an engine, also of one without other requests."""
    prompts: int = Field(default=2, ge=1)
    """The most of these whose prompts aren't computed yet. They begin together, so that their prompts share a pass."""


class Wake(Section):
    """Agents wake engines that sleep (vLLM's sleep mode, level 1) while requests wait and none of the pool serves."""

    enabled: bool = False
    """Off unless it is asked for: an engine may sleep because another one uses its memory. Engines need
    `VLLM_SERVER_DEV_MODE=1`, and an agent each."""
    serve_within: PositiveDuration = 30.0
    """How long an engine may take until it serves. Then the next one is woken."""
    requests_per_engine: int | None = Field(default=None, ge=1)
    """One more engine is woken at a time for every so many waiting requests; None: one at a time."""


class FlowControl(Section):
    """Requests wait in the scheduler while the pool is saturated, and get the best endpoint when they leave.

    Higher bands go first; a lower band never overtakes a waiting request of a higher one.
    """

    enabled: bool = True
    """False sends every request to an engine at once."""
    detector: PluginUse = PluginUse(use="utilization")
    """Measures the saturation of the pool."""
    bands: dict[int, Band] = Field(default_factory=dict[int, Band])
    """Bands by priority. Others are made as needed: `default_band` for 0 and above, `negative_band` below."""
    default_band: Band = Band()
    """For priorities of 0 and above that `bands` doesn't list."""
    negative_band: Band = Band(max_requests=0)
    """For requests that may be shed: by default none of them waits."""
    background: Background = Background()
    """For requests with a priority of -100 or less: they wait until an engine has capacity left."""
    max_requests: int | None = Field(default=20000, ge=0)
    """Most requests that wait in all bands together. At the limit, a new request displaces the latest one of a lower
    band."""
    max_bytes: ByteSize | None = 4 * 10**9
    """Total size of the bodies of waiting requests in all bands."""
    ttl: PositiveDuration = 20.0
    """How long a request may wait. Keep it below the edge's `decision_timeout`, so that the error names the real
    reason."""
    no_endpoint_ttl: Duration | None = None
    """How long a request may wait while no engine of the pool serves, because it has none or all sleep, so that one can
    be started or woken; None means `ttl`. A longer one needs a longer `decision_timeout` of the edge, too."""
    wake: Wake = Wake()
    """Whether engines that sleep are woken."""

    @model_validator(mode="after")
    def _ceilings_rise_with_priority(self) -> Self:
        ordered = sorted(self.bands.items())
        for (low, lower), (high, higher) in pairwise(ordered):
            if lower.ceiling > higher.ceiling:
                raise ValueError(
                    f"bands.{low}.ceiling is {lower.ceiling}, above {higher.ceiling} of band {high}; "
                    "a higher priority needs at least the ceiling of the lower one"
                )
        return self
