"""Filters and scorers of models that call others: `any-of`, `all-of`, `fallback-of`, `by-condition`, `least-of`,
`greatest-of`, `score-by-condition`, `timed`.

Those that they call stand in the same list and run nowhere else.
"""

from collections.abc import Callable, Sequence
from typing import Self

from pydantic import Field, model_validator

from pointsman_plugins.plugin import Params, ParamsT_co, Reference
from pointsman_plugins.selecting import Candidate, ModelFilter, ModelQuestion, ModelScorer
from pointsman_plugins.stopwatch import Stopwatch, TimedParams

Objections = list[str | None]


class FiltersParams(Params):
    of: tuple[Reference, ...] = Field(min_length=2)
    """Names of the filters to call, in order."""


class _Composed(ModelFilter[ParamsT_co]):
    """Calls other filters."""

    sees_all = True
    _parts: tuple[ModelFilter, ...] = ()

    def call_filters(self, names: Sequence[str]) -> tuple[ModelFilter, ...]:
        """The filters of these names, whose state it reads from now on."""
        parts = tuple([self.refer(name, ModelFilter) for name in names])
        self._parts = (*self._parts, *parts)
        self.reads_pools = any(each.reads_pools for each in self._parts)
        self.reads_open_requests = any(each.reads_open_requests for each in self._parts)
        return parts

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        return self.objections(question, (candidate,))[0]

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        times = [each.retry_after_s(question, candidate) for each in self._parts]
        return min((time for time in times if time is not None), default=None)


class AnyOfFilters(_Composed[FiltersParams]):
    """Keeps the models to which at least one of the filters has no objection."""

    type_name = "any-of"

    def setup(self) -> None:
        self.call_filters(self.params.of)

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> Objections:
        each = [part.objections(question, candidates) for part in self._parts]
        return [None if None in told else _joined(told) for told in zip(*each, strict=True)]


class AllOfFilters(_Composed[FiltersParams]):
    """Keeps the models to which none of the filters objects; each sees those that the filters before it kept. For a
    group inside `any-of`, `fallback-of` or `by-condition`."""

    type_name = "all-of"

    def setup(self) -> None:
        self.call_filters(self.params.of)

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> Objections:
        found: Objections = [None] * len(candidates)
        left = list(range(len(candidates)))
        for part in self._parts:
            told = part.objections(question, [candidates[place] for place in left])
            for place, objection in zip(left, told, strict=True):
                found[place] = objection
            left = [place for place in left if found[place] is None]
        return found


class FallbackOfFilters(_Composed[FiltersParams]):
    """Keeps the models that the first of the filters keeps which keeps any. With none, the last filter's objections
    count."""

    type_name = "fallback-of"

    def setup(self) -> None:
        self.call_filters(self.params.of)

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> Objections:
        told: Objections = []
        for part in self._parts:
            told = part.objections(question, candidates)
            if None in told:
                break
        return told


class ConditionParams(Params):
    header: str | None = Field(default=None, min_length=1)
    """Name of a header, in any case, that the request must have."""
    values: tuple[str, ...] = ()
    """Values of the header that count; without them any value does, but an empty one."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Least length of the prompt in tokens."""
    then: Reference
    """Name of the plugin for requests that meet the condition."""
    otherwise: Reference | None = None
    """Name of the plugin for all others; without it models are kept, or score 1."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if self.header is None and self.prompt_tokens is None:
            raise ValueError("write `header`, `prompt_tokens` or both")
        if self.values and self.header is None:
            raise ValueError("`values` needs a `header`")
        return self

    def is_met(self, question: ModelQuestion) -> bool:
        """Whether the request meets every part of the condition."""
        facts = question.journey.request
        if self.prompt_tokens is not None and facts.prompt_tokens < self.prompt_tokens:
            return False
        if self.header is None:
            return True
        value = facts.headers.get(self.header.lower(), "")
        return value in self.values if self.values else bool(value)


class FilterByCondition(_Composed[ConditionParams]):
    """Calls one filter for the requests that meet a condition, and another one for the rest."""

    type_name = "by-condition"

    def setup(self) -> None:
        params = self.params
        (self._then,) = self.call_filters((params.then,))
        self._otherwise = None if params.otherwise is None else self.call_filters((params.otherwise,))[0]

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> Objections:
        part = self._then if self.params.is_met(question) else self._otherwise
        return [None] * len(candidates) if part is None else part.objections(question, candidates)


class ScorersParams(Params):
    of: tuple[Reference, ...] = Field(min_length=2)
    """Names of the scorers to call."""


class _ComposedScorer(ModelScorer[ParamsT_co]):
    """Calls other scorers."""

    _parts: tuple[ModelScorer, ...] = ()

    def call_scorers(self, names: Sequence[str]) -> tuple[ModelScorer, ...]:
        """The scorers of these names, whose state it reads from now on. ValueError for one that compares meanings."""
        parts = tuple([self.refer(name, ModelScorer) for name in names])
        for part in parts:
            if part.embeddings is not None:
                raise ValueError(f"{part.name!r} compares meanings: the selector must call it itself")
        self._parts = (*self._parts, *parts)
        self.reads_pools = any(each.reads_pools for each in self._parts)
        self.reads_open_requests = any(each.reads_open_requests for each in self._parts)
        return parts

    def remark(self, question: ModelQuestion) -> str | None:
        told = [(part.name, part.remark(question)) for part in self._parts]
        return "; ".join([f"{name}: {remark}" for name, remark in told if remark is not None]) or None


class _ExtremeOf(_ComposedScorer[ScorersParams]):
    _extreme: Callable[[Sequence[float]], float]

    def setup(self) -> None:
        self.call_scorers(self.params.of)

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        each = [_within(part.scores(question, candidates)) for part in self._parts]
        return [type(self)._extreme(of_model) for of_model in zip(*each, strict=True)]


class LeastOfScorers(_ExtremeOf):
    """For each model the lowest of its scores: a model must suit by all of them."""

    type_name = "least-of"
    _extreme = min


class GreatestOfScorers(_ExtremeOf):
    """For each model the highest of its scores: one of them is enough."""

    type_name = "greatest-of"
    _extreme = max


class ScoreModelsByCondition(_ComposedScorer[ConditionParams]):
    """Scores by one scorer for the requests that meet a condition, and by another one for the rest."""

    type_name = "score-by-condition"

    def setup(self) -> None:
        params = self.params
        (self._then,) = self.call_scorers((params.then,))
        self._otherwise = None if params.otherwise is None else self.call_scorers((params.otherwise,))[0]

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        part = self._then if self.params.is_met(question) else self._otherwise
        return [1.0] * len(candidates) if part is None else part.scores(question, candidates)


def _joined(objections: Sequence[str | None]) -> str:
    return "; ".join(dict.fromkeys(each for each in objections if each is not None))


def _within(scores: Sequence[float]) -> list[float]:
    """In [0,1], 0 for NaN, as the selector has them."""
    return [0.0 if score != score else min(1.0, max(0.0, score)) for score in scores]


class TimedFilter(ModelFilter[TimedParams]):
    """Bounds and records the time of another filter. While that is left out, it objects to no model."""

    type_name = "timed"

    def setup(self) -> None:
        self._inner = inner = self.refer(self.params.of, ModelFilter)
        self.sees_all = True
        self.reads_pools, self.reads_open_requests = inner.reads_pools, inner.reads_open_requests
        self._watch = Stopwatch(self.params)

    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        return self.objections(question, (candidate,))[0]

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> Objections:
        found = self._watch.call(lambda: self._inner.objections(question, candidates))
        return [None] * len(candidates) if found is None else found

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
