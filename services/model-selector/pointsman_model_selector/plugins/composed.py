"""Filters and scorers of models that call others: `any-of`, `timed`.

Those that they call stand in the same list and run nowhere else.
"""

from collections.abc import Sequence

from pydantic import Field

from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.selecting import Candidate, ModelFilter, ModelQuestion, ModelScorer
from pointsman_plugins.stopwatch import Stopwatch, TimedParams


class AnyOfParams(Params):
    of: tuple[Reference, ...] = Field(min_length=2)
    """Names of the filters to call, in order."""


class AnyOfFilters(ModelFilter[AnyOfParams]):
    """Keeps the models to which at least one of the filters has no objection."""

    type_name = "any-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, ModelFilter) for name in self.params.of])
        self.reads_pools = any(each.reads_pools for each in self._parts)
        self.reads_open_requests = any(each.reads_open_requests for each in self._parts)

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        objections: list[str] = []
        for each in self._parts:
            objection = each.objection(question, candidate)
            if objection is None:
                return None
            objections.append(objection)
        return "; ".join(dict.fromkeys(objections))

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        times = [each.retry_after_s(question, candidate) for each in self._parts]
        return min((time for time in times if time is not None), default=None)


class TimedFilter(ModelFilter[TimedParams]):
    """Bounds and records the time of another filter. While that is left out, it objects to no model."""

    type_name = "timed"

    def setup(self) -> None:
        self._inner = inner = self.refer(self.params.of, ModelFilter)
        self.reads_pools, self.reads_open_requests = inner.reads_pools, inner.reads_open_requests
        self._watch = Stopwatch(self.params)

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        return self._watch.call(lambda: self._inner.objection(question, candidate))

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        return self._inner.retry_after_s(question, candidate)


class TimedScorer(ModelScorer[TimedParams]):
    """Bounds and records the time of another scorer. While that is left out, all models score alike."""

    type_name = "timed"

    def setup(self) -> None:
        self._inner = inner = self.refer(self.params.of, ModelScorer)
        if inner.embeddings is not None:
            raise ValueError(f"{self.params.of!r} compares meanings: the selector must call it itself")
        self.reads_pools, self.reads_open_requests = inner.reads_pools, inner.reads_open_requests
        self._watch = Stopwatch(self.params)

    def bind(self, candidates: Sequence[Candidate]) -> None:
        self._inner.bind(candidates)

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        found = self._watch.call(lambda: self._inner.scores(question, candidates))
        return [0.0] * len(candidates) if found is None else found

    def remark(self, question: ModelQuestion) -> str | None:
        remark = self._inner.remark(question)
        told = f"{self.params.of}: {self._watch.words}"
        return told if remark is None else f"{remark}; {told}"
