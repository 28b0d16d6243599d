"""Filters of models that call others: `any-of`.

The filters that it calls stand in the same list and run nowhere else.
"""

from pydantic import Field

from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.selecting import Candidate, ModelFilter, ModelQuestion


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
