"""Filters that call others: `any-of`, `all-of`, `fallback-of`, `by-condition`, `dry-run`.

The filters that one of these calls stand in the same list and run nowhere else.
"""

from collections.abc import Callable

import numpy as np
from pydantic import Field

from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.scheduling.arrays import Bools
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Decider, Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Worker


class SeveralParams(Params):
    of: tuple[Reference, ...] = Field(min_length=2)
    """Names of the filters to call, in order."""


def _ask(each: Filter, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
    """The removal by a filter, as a profile asks for it."""
    if each.only_for is not None and not request.wishes(each.only_for):
        return None
    removal = each.filter(request, candidates)
    return None if removal is None or (removal.keep.all() and removal.degraded is None) else removal


def _degraded(removals: list[Removal]) -> str | None:
    return "; ".join(dict.fromkeys(each.degraded for each in removals if each.degraded is not None)) or None


class AnyOf(Filter[SeveralParams]):
    """Keeps the workers that at least one of the filters keeps."""

    type_name = "any-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, Filter) for name in self.params.of])
        self._why = f"none of {', '.join(self.params.of)} keeps it"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        removals: list[Removal] = []
        keep: Bools = np.zeros(candidates.size, dtype=np.bool_)
        for part in self._parts:
            removal = _ask(part, request, candidates)
            if removal is None:
                return None
            removals.append(removal)
            keep = keep | removal.keep
        return Removal(keep, self._why, _degraded(removals), any(each.in_turn for each in removals))


class AllOf(Filter[SeveralParams]):
    """Keeps the workers that every one of the filters keeps; each sees those that the filters before it kept. For a
    group inside `any-of`, `fallback-of` or `by-condition`."""

    type_name = "all-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, Filter) for name in self.params.of])

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        removals: list[Removal] = []
        keep: Bools = np.ones(candidates.size, dtype=np.bool_)
        reasons: dict[int, str | Callable[[Worker], str]] = {}
        left = candidates
        for part in self._parts:
            removal = _ask(part, request, left) if left.size else None
            if removal is None:
                continue
            removals.append(removal)
            reasons |= dict.fromkeys(left.keep(~removal.keep).indices().tolist(), removal.why)
            keep[np.flatnonzero(keep)] = removal.keep
            left = left.keep(removal.keep)

        def why(worker: Worker) -> str:
            reason = reasons[worker.row]
            return reason if isinstance(reason, str) else reason(worker)

        return Removal(keep, why, _degraded(removals), any(each.in_turn for each in removals)) if removals else None


class FallbackOf(Filter[SeveralParams]):
    """Keeps what the first of the filters keeps that keeps any worker. With none, the last filter's removal counts. The
    decision names the filter that was passed over."""

    type_name = "fallback-of"

    def setup(self) -> None:
        self._parts = tuple([self.refer(name, Filter) for name in self.params.of])

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        passed: list[str] = []
        removal: Removal | None = None
        for part in self._parts:
            removal = _ask(part, request, candidates)
            if removal is None or removal.keep.any():
                break
            passed.append(part.name)
        if not passed:
            return removal
        degraded = f"{self.name}: no worker passes {', '.join(passed)}"
        if removal is None:
            return Removal(np.ones(candidates.size, dtype=np.bool_), "", degraded)
        words = degraded if removal.degraded is None else f"{degraded}; {removal.degraded}"
        return removal._replace(degraded=words)


class ByConditionParams(Params):
    when: Reference
    """Name of the decider that is asked."""
    then: Reference
    """Name of the filter for requests that it wants."""
    otherwise: Reference | None = None
    """Name of the filter for all others; without it they keep every worker."""


class ByCondition(Filter[ByConditionParams]):
    """Calls one filter for the requests that a decider wants, and another one for the rest."""

    type_name = "by-condition"

    def setup(self) -> None:
        params = self.params
        self._when = self.refer(params.when, Decider)
        self._then = self.refer(params.then, Filter)
        self._otherwise = self.refer(params.otherwise, Filter) if params.otherwise is not None else None

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        part = self._then if self._when.wanted(request, None) else self._otherwise
        return None if part is None else _ask(part, request, candidates)


class DryRunParams(Params):
    of: Reference
    """Name of the filter to try."""


class DryRun(Filter[DryRunParams]):
    """Calls a filter and removes nothing. The decision says how many workers it would have removed, so that a filter
    can be watched before it decides."""

    type_name = "dry-run"

    def setup(self) -> None:
        self._part = self.refer(self.params.of, Filter)

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        removal = _ask(self._part, request, candidates)
        if removal is None:
            return None
        gone = int(np.count_nonzero(~removal.keep))
        words = f"{self._part.name} would remove {gone} of {candidates.size}"
        return Removal(np.ones(candidates.size, dtype=np.bool_), "", words)
