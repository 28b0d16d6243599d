"""The scheduling section: how the endpoint of a request is chosen within its pool."""

from typing import Literal

from pydantic import Field, model_validator

from pointsman_core.config.flow_control import FlowControl
from pointsman_core.config.section import PluginUse, ScorerUse, Section, expanded
from pointsman_core.units import PositiveDuration


class SchedulingProfile(Section):
    """Filters, then weighted scorers, then one picker."""

    filters: tuple[PluginUse, ...] = (
        PluginUse(use="healthy"),
        PluginUse(use="subset"),
        PluginUse(use="lora-capable"),
    )
    """Remove engines that can't serve the request."""
    scorers: tuple[ScorerUse, ...] = (
        ScorerUse(use="least-delay", weight=12),
        ScorerUse(use="lora-affinity", weight=24),
        ScorerUse(use="queue", weight=1),
    )
    """Score the engines that are left from 0 to 1; scores are added up by weight."""
    picker: PluginUse = PluginUse(use="max-score")
    """Picks engines by the total scores: the first one, and fallbacks."""


class LateBinding(Section):
    """Hold a request at the scheduler until the engine that suits it best is about to start it. Takes effect only where
    `least-delay` decides: with `max-score`, and no other scorers than `lora-affinity` and `queue`."""

    enabled: bool = True
    """False sends every request to an engine as soon as it is decided."""
    slowdown: float = Field(default=3.0, ge=1.0)
    """A request that has waited this many times its own expected time to the first token is sent before all shorter
    ones; several such requests in the order of their arrival."""
    max_requests: int = Field(default=64, ge=1)
    """Requests of a pool that one scheduler may hold; with more, the oldest is sent at once."""


class WaitForRoom(Section):
    """Let a request wait while its prompt would push out of an engine's KV cache what open requests use, or the prefix
    of a session that is about to go on. Takes effect where engines report the size of their caches."""

    enabled: bool = True
    """False sends every request however full the caches are."""
    patience: PositiveDuration = 120.0
    """A request that has waited this long has the next engine with room for itself."""


class StickySessions(Section):
    """Keep a session on the engine of its last request, without filters and scorers."""

    for_: PositiveDuration = Field(default=300.0, alias="for")
    """A session without a request for this long is free again."""
    unless: tuple[Literal["saturated", "gone"], ...] = ("saturated", "gone")
    """The session may go elsewhere when its engine is `saturated` (5 requests wait, or 80 % of its KV cache is in use),
    or `gone` (it left, is draining, silent, or fails requests). Without `gone` such requests are refused with 503."""


class SchedulingPolicy(Section):
    """A profile handler and its scheduling profiles. `filters`, `scorers` and `picker` at this level are a short form
    for one profile named `default`."""

    handler: PluginUse = PluginUse(use="single")
    """Chooses the scheduling profiles to run, e.g. one for prefill and one for decode."""
    profiles: dict[str, SchedulingProfile] = Field(
        default_factory=lambda: {"default": SchedulingProfile()}, min_length=1
    )
    """Scheduling profiles, by name."""
    producers: tuple[PluginUse, ...] = ()
    """Compute values that other plugins read. A producer that a plugin needs is added with its defaults unless it is
    listed."""
    deciders: tuple[PluginUse, ...] = ()
    """Conditions that profile handlers refer to."""
    pre_request: tuple[PluginUse, ...] = Field(default=(PluginUse(use="destination-header"),), alias="pre-request")
    """Write headers after the choice and before the request is sent."""
    observers: tuple[PluginUse, ...] = ()
    """Plugins that learn from the ends of requests."""
    flow_control: FlowControl = FlowControl()
    """How requests wait while the pool is saturated."""
    late_binding: LateBinding = LateBinding()
    """When a request is sent to the engine that is chosen for it."""
    cache_room: WaitForRoom = WaitForRoom()
    """When requests wait for room in engines' KV caches."""
    sticky: StickySessions | None = None
    """Keeps sessions on their engines, past the profile. Needs the handler `single`. Default: none does."""

    @model_validator(mode="before")
    @classmethod
    def _expand_the_short_form(cls, value: object) -> object:
        return expanded(value, "profiles")

    @model_validator(mode="after")
    def _sticky_sessions_have_one_engine(self) -> "SchedulingPolicy":
        if self.sticky is not None and self.handler.use != "single":
            raise ValueError(f"sticky: it needs the handler `single`, not {self.handler.use!r}")
        return self
