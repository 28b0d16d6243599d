"""Decides whether a prompt should be computed on another worker: `prefix`, `pays`, `always`, `multimodal`."""

import math
from typing import Final

from pydantic import Field

from pointsman_contracts.scheduling import LegsForecast
from pointsman_delay.handover import LegPrompt
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import MATCHED_TOKENS, Decider, LegDecider, ResponseObserver
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.plugins.producers.delay import DELAY_MODEL


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
    """Wants long prompts with at least `uncached_tokens` tokens that the endpoint chosen for decoding has not cached.
    Without such an endpoint, cached prefixes don't count."""

    type_name = "prefix"
    consumes = (MATCHED_TOKENS,)

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        if request.facts.prompt_tokens < self.params.prompt_tokens:
            return False
        matched = int(request.get(MATCHED_TOKENS)[run.chosen[0]]) if run is not None else 0
        return request.facts.prompt_tokens - matched >= self.params.uncached_tokens


_WINDOW_S: Final = 30.0
_MOST_LIVES: Final = 4096


class PaysParams(Params):
    pauses: float = Field(default=0.005, ge=0, le=1)
    """Share of an engine's decode steps that may also compute a part of a prompt: running answers wait for such a step.
    The default leaves the 99th percentile of the time between tokens as it is."""
    pause_weight: float = Field(default=8.0, ge=1)
    """How much worse such a wait is than the same wait spread over many tokens, once their share is reached."""


class Pays(LegDecider[PaysParams], ResponseObserver[PaysParams]):
    """Requests that cost less on two engines than on one, by the delay model: how long the first one takes for the
    prompt, the KV cache from there to the endpoint that answers (learnt for each pair), and this request in the running
    batch there, against all of it at the endpoint that answers. Costs are those of `least-delay`: what the request
    waits, and what it makes others wait. Until the model is trusted, every prompt is computed elsewhere."""

    type_name = "pays"
    consumes = (MATCHED_TOKENS, DELAY_MODEL)

    def setup(self) -> None:
        self._prompts: dict[int, tuple[float, float]] = {}
        """Prompts that an engine with running answers lately computed, fading, and when that was; by its life."""

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return True

    def weigh(self, request: ScheduleRequest, answering: Run, other: Run) -> LegsForecast | None:
        model = request.get(DELAY_MODEL)
        if not model.best.model.is_trusted:
            return None
        fleet, rows = answering.candidates.fleet, (other.chosen[0], answering.chosen[0])
        first, second = (fleet.workers[row] for row in rows)
        matched = request.get(MATCHED_TOKENS)
        prompt = LegPrompt(
            max(1, request.facts.prompt_tokens), first.name, matched.item(first.row), matched.item(second.row)
        )
        now_s = answering.candidates.now
        now = now_s * 1000.0
        return model.weigh(
            rows,
            (first.life, second.life),
            prompt,
            now,
            max_output=request.facts.max_output_tokens,
            pause=self.pause_weight(second.life, model.step_ms(second.row, now), now_s),
        )

    def pause_weight(self, life: int, step_ms: float, now: float) -> float:
        """How much a pause of that engine's answers counts, with one prompt more; `step_ms`: of its decode steps."""
        share = (self._faded(life, now) + 1.0) / _WINDOW_S * step_ms / 1000.0
        return self.params.pause_weight if share > self.params.pauses else 1.0

    def chosen(self, hold: Hold, now: float) -> None:
        if not hold.change.leg and hold.change.uncached_tokens and hold.worker.open > 1:
            life = hold.worker.life
            self._prompts[life] = self._faded(life, now) + 1.0, now
            if len(self._prompts) > _MOST_LIVES:
                kept = [one for one, (_, at) in self._prompts.items() if now - at < _WINDOW_S]
                self._prompts = {one: self._prompts[one] for one in kept}

    def _faded(self, life: int, now: float) -> float:
        count, at = self._prompts.get(life, (0.0, now))
        return count * math.exp((at - now) / _WINDOW_S)


_MODALITIES: Final = frozenset(("vision", "audio", "video"))


class Multimodal(Decider):
    """Requests with images, audio or video."""

    type_name = "multimodal"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return not _MODALITIES.isdisjoint(request.facts.features)
