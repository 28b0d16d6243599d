"""The section `slo` of profiles and models: a service level."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pointsman_core.config.section import Section
from pointsman_core.units import PositiveDuration


class ServiceLevel(Section):
    """How fast answers should be. A key's level stands before the profile's, and that before the model's, each time by
    itself. A request's own headers (`x-slo-ttft-ms`, `x-slo-tpot-ms`) may ask for longer times, not shorter ones."""

    ttft: PositiveDuration | None = None
    """Longest time from receiving a request to the first token of its answer."""
    itl: PositiveDuration | None = None
    """Longest time between two tokens, on average over an answer."""
    class_: str = Field(default="", alias="class", max_length=64)
    """Name of the level in metrics and audits; default: the name of the profile or model."""
    weight: float = Field(default=1.0, ge=0.01, le=100)
    """The share of the engines that the class is entitled to, beside the weights of other classes, while not all
    requests can be in time."""
    late: Literal["serve", "refuse", "spill"] = "serve"
    """For a request that is predicted to get its first token too late, or its tokens too slowly. `serve`: it is served
    and counted. `refuse`: 429 with the predicted time, at once, and also when the time runs out in the queue. `spill`:
    one of the model's `fallbacks` serves it, if that is in time; otherwise it is served late."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if self.ttft is None and self.itl is None:
            raise ValueError("a service level needs `ttft`, `itl` or both, e.g. `ttft: 800ms`")
        return self
