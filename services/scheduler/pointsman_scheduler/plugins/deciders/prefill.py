"""Whether the prompt of a request is worth computing elsewhere: `prefix`, `always`, `multimodal`."""

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.outcome import Run
from pointsman_scheduler.domain.points import MATCHED_TOKENS, Decider
from pointsman_scheduler.domain.request import ScheduleRequest


class Always(Decider):
    """Every request."""

    type_name: ClassVar[str] = "always"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return True


class PrefixParams(Params):
    uncached_tokens: int = Field(default=512, ge=1)
    """Least number of prompt tokens that the chosen endpoint would have to compute."""
    prompt_tokens: int = Field(default=0, ge=0)
    """Least length of the prompt."""


class Prefix(Decider):
    """Long prompts of which the endpoint chosen for decoding holds little. Without such a choice, what is cached
    somewhere doesn't count."""

    type_name: ClassVar[str] = "prefix"
    params_type: ClassVar[type[Params]] = PrefixParams
    consumes = (MATCHED_TOKENS,)

    def __init__(self, name: str, params: PrefixParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params: Final = params

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        if request.prompt_tokens < self._params.prompt_tokens:
            return False
        matched = int(request.get(MATCHED_TOKENS)[run.chosen[0]]) if run is not None else 0
        return request.prompt_tokens - matched >= self._params.uncached_tokens


_MODALITIES: Final = frozenset(("vision", "audio", "video"))


class Multimodal(Decider):
    """Requests with images, audio or video."""

    type_name: ClassVar[str] = "multimodal"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return not _MODALITIES.isdisjoint(request.features)
