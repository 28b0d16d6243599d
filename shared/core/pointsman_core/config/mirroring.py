"""Policies of the service `mirror`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_core.config.section import Problem, Section
from pointsman_core.config.stages import StageUse
from pointsman_core.plugins import unknown
from pointsman_core.units import PositiveDuration

MIRROR: Final = "mirror"
"""The service."""
DEFAULT_MIRROR: Final = "default"
"""The policy of an itinerary's `mirror` without a name."""


def _as_names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Mirror(Section):
    """One policy: the models that answer copies of requests, and the most that copies may take."""

    to: Annotated[tuple[str, ...], BeforeValidator(_as_names), Field(min_length=1, max_length=8)]
    """Models, as requests name them; each answers a copy. The model that answered the request may be among them: two
    answers of one model show how much answers differ by chance."""
    at_once: int = Field(default=4, ge=1)
    """Most copies that each process of the service has open at once. Requests that come meanwhile aren't mirrored."""
    within: PositiveDuration = 120.0
    """How long the answer to a copy may take."""
    priority: int = Field(default=BATCH_PRIORITY, ge=-1000, le=0)
    """Priority of copies. From -100 down they are background work, which gives way to all others; 0 measures waiting
    times as clients would have them, on engines that serve copies alone."""
    tenant: str = MIRROR
    """The tenant of the copies: limits, budgets and the ledger count them for it, never for the client."""
    limits: dict[str, str | int] = Field(default_factory=dict[str, str | int])
    """Name → value, for limits and budgets that take their value from the identity, e.g. `budget: 20/d`."""

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        if self.at_once < len(self.to):
            raise ValueError(f"`at_once` ({self.at_once}) is less than the {len(self.to)} models of `to`")
        return self


def mirror_problems(where: str, stages: Sequence[StageUse], mirrors: Mapping[str, Mirror]) -> Iterator[Problem]:
    """The problems of the mirrors in a response itinerary; `where` is the path of the list."""
    for position, use in enumerate(stages):
        if use.service != MIRROR:
            continue
        name = use.policy or DEFAULT_MIRROR
        if name not in mirrors:
            yield f"{where}.{position}", unknown("mirror", name, mirrors)
        if use.answer_mode not in (None, "after"):
            yield f"{where}.{position}", "`mirror` is asked when the client has everything; leave `mode` out"
