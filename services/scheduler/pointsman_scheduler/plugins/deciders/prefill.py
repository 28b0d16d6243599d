"""Decides whether a prompt should be computed on another worker: `prefix`, `always`, `multimodal`."""

from typing import Final

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Decider
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run


class Always(Decider):
    """Every request."""

    type_name = "always"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return True


class PrefixParams(Params):
    uncached_tokens: int = Field(default=512, ge=1)
    """Minimum number of prompt tokens that the chosen endpoint would have to compute."""
    prompt_tokens: int = Field(default=0, ge=0)
    """Minimum length of the prompt."""


class Prefix(Decider[PrefixParams]):
    """Long prompts of which the endpoint chosen for decoding holds little. Without such an endpoint, cached prefixes
    don't count."""

    type_name = "prefix"
    consumes = (MATCHED_TOKENS,)

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        if request.facts.prompt_tokens < self.params.prompt_tokens:
            return False
        matched = int(request.get(MATCHED_TOKENS)[run.chosen[0]]) if run is not None else 0
        return request.facts.prompt_tokens - matched >= self.params.uncached_tokens


_MODALITIES: Final = frozenset(("vision", "audio", "video"))


class Multimodal(Decider):
    """Requests with images, audio or video."""

    type_name = "multimodal"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return not _MODALITIES.isdisjoint(request.facts.features)
