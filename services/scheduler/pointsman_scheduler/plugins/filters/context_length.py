"""`context-length`: workers whose engine accepts sequences this long."""

import re
from typing import ClassVar

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import TOO_LONG, Exhausted
from pointsman_plugins.scheduling.worker import Worker


class ContextLengthParams(Params):
    label: str | None = None
    """A label `min-max` that names the prompt lengths a worker is meant for, in tokens."""
    tolerance: float = Field(default=0.25, ge=0, lt=1)
    """How much of an estimated length is disregarded; an exact one counts in full."""


class ContextLength(Filter[ContextLengthParams]):
    """Removes workers whose longest sequence is shorter than prompt and answer together (an answer without a limit
    counts as one token), and, with `label`, those meant for other prompt lengths. A worker that registered neither
    passes."""

    type_name = "context-length"
    exhausted: ClassVar[Exhausted] = TOO_LONG

    def setup(self) -> None:
        self._certain = 1.0 - self.params.tolerance
        self._epoch = -1
        self._longest: Floats = np.empty(0)
        self._meant_from: Floats = np.empty(0)
        self._meant_to: Floats = np.empty(0)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        if self._epoch != candidates.fleet.epoch:
            self._read(candidates.fleet.workers)
            self._epoch = candidates.fleet.epoch
        # The engine counts the turns that it keeps itself: a wrong report of their tokens must refuse nothing.
        prompt = request.facts.prompt_tokens - (request.facts.continued_tokens or 0)
        certain = prompt if request.facts.tokens_exact else prompt * self._certain
        needed = certain + (request.facts.max_output_tokens or 1)
        keep = (self._longest >= needed) & (self._meant_from <= prompt) & (prompt <= self._meant_to)
        if candidates.rows is not None:
            keep = keep[candidates.rows]

        def why(worker: Worker) -> str:
            if self._longest[worker.row] < needed:
                return f"takes {self._longest[worker.row]:.0f} tokens, {needed:.0f} are needed"
            return f"meant for prompts of {worker.registration.labels.get(self.params.label or '')} tokens"

        return Removal(keep, why)

    def _read(self, workers: list[Worker]) -> None:
        self._longest = np.array([worker.registration.max_context or np.inf for worker in workers], dtype=np.float64)
        ranges = np.array([self._range(worker) for worker in workers], dtype=np.float64).reshape(-1, 2)
        self._meant_from, self._meant_to = ranges[:, 0].copy(), ranges[:, 1].copy()

    def _range(self, worker: Worker) -> tuple[float, float]:
        text = worker.registration.labels.get(self.params.label) if self.params.label is not None else None
        if text is None:
            return 0.0, float("inf")
        match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)
        # A worker with an invalid label serves no prompt length: its owner has to correct it.
        return (float(match[1]), float(match[2])) if match else (float("inf"), 0.0)
